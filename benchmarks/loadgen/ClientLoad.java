import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * The unmodified Java client as a load: async sends with a window, sync sends from threads, a push consumer.
 *
 *   ClientLoad async   --namesrv A --topic T --window 2000 --body 100 --seconds 8 --warmup 6 [--autobatch 1 [--batchbytes N]]
 *   ClientLoad sync    --namesrv A --topic T --threads 1 --body 100 --seconds 4 --warmup 4
 *   ClientLoad produce --namesrv A --topic T --settle 5000000 --seconds 5    (async at two sizes, then sync)
 *   ClientLoad consume --namesrv A --topic T --count 300000 --batch 32
 *
 * Java's compilers go on for millions of messages. With --settle N, async sends are measured when three windows of a
 * second agree within 3 %, or after N messages; sync sends, when three of half a second do, or after 20 s.
 *
 * Prints one line of JSON.
 */
public final class ClientLoad {
    private static final Map<String, String> OPTIONS = new HashMap<>();

    private static int number(String name, int otherwise) {
        return Integer.parseInt(OPTIONS.getOrDefault(name, String.valueOf(otherwise)));
    }

    private static double real(String name, double otherwise) {
        return Double.parseDouble(OPTIONS.getOrDefault(name, String.valueOf(otherwise)));
    }

    public static void main(String[] args) throws Exception {
        for (int i = 1; i + 1 < args.length; i += 2) {
            OPTIONS.put(args[i].substring(2), args[i + 1]);
        }
        switch (args[0]) {
            case "async":
                async();
                break;
            case "sync":
                sync();
                break;
            case "produce":
                produce();
                break;
            case "consume":
                consume();
                break;
            default:
                System.out.println("{\"error\": \"no such mode\"}");
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // the client's shutdown takes seconds and measures nothing
    }

    private static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench_java_producer");
        producer.setNamesrvAddr(OPTIONS.get("namesrv"));
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(10_000);
        producer.setAutoBatch(number("autobatch", 0) == 1);
        if (number("batchbytes", 0) > 0) { // its own defaults: 10 ms, 32 KB
            producer.batchMaxBytes(number("batchbytes", 0));
        }
        producer.start();
        return producer;
    }

    private static byte[] body(int length) {
        byte[] body = new byte[length];
        Arrays.fill(body, (byte) 'x');
        return body;
    }

    /** What one phase of sending measured. */
    private static final class Phase {
        long ok;
        long bad;
        double took;
        long[] sorted = new long[0];
        String reason = "";

        String json(String mode) {
            StringBuilder text = new StringBuilder();
            text.append(String.format("{\"mode\": \"%s\", \"ok\": %d, \"codes\": {\"0\": %d, \"1\": %d}, ", mode, ok, ok, bad));
            text.append(String.format("\"seconds\": %.4f, \"per_second\": %.1f", took, ok / took));
            if (sorted.length > 0) {
                text.append(String.format(", \"latency_us\": {\"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}",
                    sorted[sorted.length / 2] / 1e3, sorted[(int) (sorted.length * 0.99)] / 1e3,
                    sorted[sorted.length - 1] / 1e3));
            }
            return text.append("}").toString();
        }
    }

    private static void print(Phase phase, String mode) {
        if (phase.ok == 0) {
            fail("no send succeeded: " + phase.reason);
        } else {
            System.out.println(phase.json(mode));
        }
    }

    private static void async() throws Exception {
        print(asyncPhase(producer(), OPTIONS.get("topic"), body(number("body", 100)), real("warmup", 0),
            number("settle", 0), real("seconds", 5)), "async");
    }

    private static void sync() throws Exception {
        print(syncPhase(producer(), OPTIONS.get("topic"), body(number("body", 100)), number("threads", 1),
            real("warmup", 0), real("seconds", 5)), "sync");
    }

    /** All kinds of sends from one warm client: starting and warming one for each would take most of the time. */
    private static void produce() throws Exception {
        DefaultMQProducer producer = producer();
        String topic = OPTIONS.get("topic");
        double seconds = real("seconds", 5);
        int settle = number("settle", 0);
        Phase small = asyncPhase(producer, topic, body(100), 1, settle, seconds);
        Phase large = asyncPhase(producer, topic, body(1024), 1, settle / 4, seconds);
        Phase one = syncPhase(producer, topic, body(100), 1, 1.5, seconds * 0.6);
        Phase eight = syncPhase(producer, topic, body(100), 8, 1, seconds * 0.6);
        if (small.ok == 0 || large.ok == 0 || one.ok == 0 || eight.ok == 0) {
            fail("no send succeeded: " + small.reason + large.reason + one.reason + eight.reason);
            return;
        }
        System.out.printf("{\"mode\": \"produce\", \"ok\": %d, \"per_second\": %.1f, \"phases\": {\"async100\": %s, "
            + "\"async1024\": %s, \"sync1\": %s, \"sync8\": %s}}%n", small.ok, small.ok / small.took,
            small.json("async"), large.json("async"), one.json("sync"), eight.json("sync"));
    }

    /** Whether the last three of a load's windows agree. */
    private static final class Windows {
        private final double[] rates = new double[3];
        private final double length;
        private long since;
        private long before;
        private int full;

        Windows(double length, long start) {
            this.length = length;
            this.since = start;
        }

        boolean settled(long now, long done) {
            double passed = (now - since) / 1e9;
            if (passed >= length) {
                rates[full++ % 3] = (done - before) / passed;
                since = now;
                before = done;
            }
            double most = Math.max(rates[0], Math.max(rates[1], rates[2]));
            double least = Math.min(rates[0], Math.min(rates[1], rates[2]));
            return full >= 3 && most - least <= 0.03 * most;
        }
    }

    /**
     * Async sends. Measuring begins when `warmup` seconds have passed and, if `settle` is not 0, the rate has settled or
     * so many messages are stored.
     */
    private static Phase asyncPhase(DefaultMQProducer producer, String topic, byte[] body, double warmup, long settle,
        double seconds) throws Exception {
        int window = number("window", 2000);
        Semaphore permits = new Semaphore(window);
        AtomicLong good = new AtomicLong();
        AtomicLong bad = new AtomicLong();
        Phase phase = new Phase();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                (result.getSendStatus() == SendStatus.SEND_OK ? good : bad).incrementAndGet();
                permits.release();
            }

            @Override
            public void onException(Throwable error) {
                bad.incrementAndGet();
                phase.reason = String.valueOf(error.getMessage());
                permits.release();
            }
        };
        long start = System.nanoTime();
        long measuredSince = 0;
        long before = 0;
        long badBefore = 0;
        long now = start;
        Windows windows = new Windows(1, start);
        while (measuredSince == 0 || now - measuredSince < seconds * 1e9) {
            permits.acquire();
            producer.send(new Message(topic, body), callback);
            now = System.nanoTime();
            if (measuredSince == 0 && (now - start) / 1e9 >= warmup
                && (good.get() >= settle || windows.settled(now, good.get()))) {
                measuredSince = now;
                before = good.get();
                badBefore = bad.get();
            }
        }
        phase.took = (now - measuredSince) / 1e9;
        phase.ok = good.get() - before;
        phase.bad = bad.get() - badBefore;
        permits.tryAcquire(window, 10, TimeUnit.SECONDS);
        return phase;
    }

    private static void settleSync(DefaultMQProducer producer, String topic, byte[] body, int threads) throws Exception {
        if (number("settle", 0) == 0) {
            return;
        }
        AtomicLong good = new AtomicLong();
        AtomicBoolean over = new AtomicBoolean();
        CountDownLatch ended = new CountDownLatch(threads);
        for (int t = 0; t < threads; t++) {
            new Thread(() -> {
                while (!over.get()) {
                    try {
                        if (producer.send(new Message(topic, body)).getSendStatus() == SendStatus.SEND_OK) {
                            good.incrementAndGet();
                        }
                    } catch (Exception error) {
                        // it does not count
                    }
                }
                ended.countDown();
            }).start();
        }
        long start = System.nanoTime();
        Windows windows = new Windows(0.5, start);
        while (System.nanoTime() - start < 20e9 && !windows.settled(System.nanoTime(), good.get())) {
            Thread.sleep(20);
        }
        over.set(true);
        ended.await();
    }

    private static Phase syncPhase(DefaultMQProducer producer, String topic, byte[] body, int threads, double warmup,
        double seconds) throws Exception {
        settleSync(producer, topic, body, threads);
        long measureFrom = System.nanoTime() + (long) (warmup * 1e9);
        long end = measureFrom + (long) (seconds * 1e9);
        long[][] times = new long[threads][2_000_000 / threads];
        int[] counts = new int[threads];
        AtomicLong bad = new AtomicLong();
        Phase phase = new Phase();
        CountDownLatch done = new CountDownLatch(threads);
        for (int t = 0; t < threads; t++) {
            int self = t;
            new Thread(() -> {
                long now = System.nanoTime();
                while (now < end) {
                    long begun = now;
                    try {
                        producer.send(new Message(topic, body));
                        now = System.nanoTime();
                        if (begun >= measureFrom && counts[self] < times[self].length) {
                            times[self][counts[self]++] = now - begun;
                        }
                    } catch (Exception error) {
                        bad.incrementAndGet();
                        phase.reason = String.valueOf(error.getMessage());
                        now = System.nanoTime();
                    }
                }
                done.countDown();
            }).start();
        }
        done.await();
        int total = Arrays.stream(counts).sum();
        phase.sorted = new long[total];
        int at = 0;
        for (int t = 0; t < threads; t++) {
            System.arraycopy(times[t], 0, phase.sorted, at, counts[t]);
            at += counts[t];
        }
        Arrays.sort(phase.sorted);
        phase.ok = total;
        phase.bad = bad.get();
        phase.took = seconds;
        return phase;
    }

    private static void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_java_" + System.nanoTime());
        consumer.setNamesrvAddr(OPTIONS.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(number("batch", 32));
        consumer.setPullBatchSize(number("batch", 32));
        consumer.subscribe(OPTIONS.get("topic"), "*");
        int count = number("count", 100_000);
        int skip = count / 4; // its compilers warm up on the first quarter
        AtomicLong seen = new AtomicLong();
        AtomicLong bytes = new AtomicLong();
        AtomicLong from = new AtomicLong();
        AtomicLong skipped = new AtomicLong();
        AtomicLong to = new AtomicLong();
        AtomicLong counted = new AtomicLong();
        AtomicBoolean over = new AtomicBoolean();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long size = 0;
            for (int i = 0; i < messages.size(); i++) {
                size += messages.get(i).getBody().length;
            }
            bytes.addAndGet(size);
            long total = seen.addAndGet(messages.size());
            if (total >= skip && from.compareAndSet(0, System.nanoTime())) {
                skipped.set(total);
            }
            if (total >= count && over.compareAndSet(false, true)) {
                to.set(System.nanoTime());
                counted.set(total);
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!done.await(120, TimeUnit.SECONDS)) {
            fail("only " + seen.get() + " of " + count + " messages arrived in 120 s");
            return;
        }
        double took = (to.get() - from.get()) / 1e9;
        long measured = counted.get() - skipped.get();
        System.out.printf("{\"mode\": \"consume\", \"ok\": %d, \"seconds\": %.4f, \"per_second\": %.1f}%n", measured, took,
            measured / took);
    }

    private static void fail(String text) {
        System.out.println("{\"error\": \"" + text.replaceAll("[\"\\\\\\s]+", " ") + "\"}");
    }
}
