import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
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
 *   ClientLoad async   --namesrv A --topic T --window 2000 --body 100 --seconds 8 --warmup 6
 *   ClientLoad sync    --namesrv A --topic T --threads 1 --body 100 --seconds 4 --warmup 4
 *   ClientLoad consume --namesrv A --topic T --count 300000 --batch 32
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
        producer.start();
        return producer;
    }

    private static byte[] body() {
        byte[] body = new byte[number("body", 100)];
        Arrays.fill(body, (byte) 'x');
        return body;
    }

    private static void async() throws Exception {
        DefaultMQProducer producer = producer();
        String topic = OPTIONS.get("topic");
        byte[] body = body();
        int window = number("window", 2000);
        Semaphore permits = new Semaphore(window);
        AtomicLong good = new AtomicLong();
        AtomicLong bad = new AtomicLong();
        String[] reason = {""};
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                (result.getSendStatus() == SendStatus.SEND_OK ? good : bad).incrementAndGet();
                permits.release();
            }

            @Override
            public void onException(Throwable error) {
                bad.incrementAndGet();
                reason[0] = String.valueOf(error.getMessage());
                permits.release();
            }
        };
        long start = System.nanoTime();
        long measureFrom = start + (long) (real("warmup", 0) * 1e9);
        long end = measureFrom + (long) (real("seconds", 5) * 1e9);
        long measuredSince = 0;
        long before = 0;
        long badBefore = 0;
        long now = start;
        while (now < end) {
            permits.acquire();
            producer.send(new Message(topic, body), callback);
            now = System.nanoTime();
            if (measuredSince == 0 && now >= measureFrom) {
                measuredSince = now;
                before = good.get();
                badBefore = bad.get();
            }
        }
        double took = (now - measuredSince) / 1e9;
        long ok = good.get() - before;
        long refused = bad.get() - badBefore;
        permits.tryAcquire(window, 10, TimeUnit.SECONDS);
        if (ok == 0) {
            fail("no send succeeded: " + reason[0]);
            return;
        }
        System.out.printf(
            "{\"mode\": \"async\", \"ok\": %d, \"codes\": {\"0\": %d, \"1\": %d}, \"seconds\": %.4f, \"per_second\": %.1f}%n",
            ok, ok, refused, took, ok / took);
    }

    private static void sync() throws Exception {
        DefaultMQProducer producer = producer();
        String topic = OPTIONS.get("topic");
        byte[] body = body();
        int threads = number("threads", 1);
        long start = System.nanoTime();
        long measureFrom = start + (long) (real("warmup", 0) * 1e9);
        long end = measureFrom + (long) (real("seconds", 5) * 1e9);
        long[][] times = new long[threads][4_000_000 / threads];
        int[] counts = new int[threads];
        AtomicLong bad = new AtomicLong();
        String[] reason = {""};
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
                        reason[0] = String.valueOf(error.getMessage());
                        now = System.nanoTime();
                    }
                }
                done.countDown();
            }).start();
        }
        done.await();
        int total = Arrays.stream(counts).sum();
        if (total == 0) {
            fail("no send succeeded: " + reason[0]);
            return;
        }
        long[] all = new long[total];
        int at = 0;
        for (int t = 0; t < threads; t++) {
            System.arraycopy(times[t], 0, all, at, counts[t]);
            at += counts[t];
        }
        Arrays.sort(all);
        System.out.printf(
            "{\"mode\": \"sync\", \"ok\": %d, \"codes\": {\"0\": %d, \"1\": %d}, \"per_second\": %.1f, "
                + "\"latency_us\": {\"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}}%n",
            total, total, bad.get(), total / real("seconds", 5), all[total / 2] / 1e3, all[(int) (total * 0.99)] / 1e3,
            all[total - 1] / 1e3);
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
