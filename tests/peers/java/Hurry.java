import java.lang.management.LockInfo;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.lang.management.ThreadMXBean;

/**
 * Work that shuts clients down, without the three seconds that a client of 5.x often takes for it: it then waits for a
 * thread that waits for events that no longer come. That thread, and no other, is interrupted.
 */
final class Hurry {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final long LOOK_MILLIS = 10;

    private Hurry() {
    }

    static void run(Runnable work) {
        Thread worker = Thread.currentThread();
        Thread watcher = new Thread(() -> watch(worker));
        watcher.setDaemon(true);
        watcher.start();
        try {
            work.run();
        } finally {
            watcher.interrupt();
        }
    }

    private static void watch(Thread worker) {
        try {
            while (worker.isAlive()) {
                Thread.sleep(LOOK_MILLIS);
                if (worker.getState() == Thread.State.TIMED_WAITING) {
                    interruptWhomItAwaits(worker);
                }
            }
        } catch (InterruptedException done) {
            Thread.currentThread().interrupt();
        }
    }

    private static void interruptWhomItAwaits(Thread worker) {
        ThreadInfo state = THREADS.getThreadInfo(worker.getId(), 16);
        LockInfo awaited = state == null ? null : state.getLockInfo();
        if (awaited == null || !endsConnections(state)) {
            return;
        }
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (System.identityHashCode(thread) == awaited.getIdentityHashCode()) {
                thread.interrupt();
            }
        }
    }

    private static boolean endsConnections(ThreadInfo state) {
        for (StackTraceElement frame : state.getStackTrace()) {
            if (frame.getClassName().endsWith(".NettyRemotingClient") && frame.getMethodName().equals("shutdown")) {
                return true;
            }
        }
        return false;
    }
}
