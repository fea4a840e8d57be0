import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The unmodified Java client consuming: pulls of 32 always, handlers of one message or a batch; and its decoder.
 *
 *   ClientConsume consume --namesrv A --topic T --count 300000 --batch 1
 *   ClientConsume decode  --file F --seconds 3
 *
 * Prints one line of JSON.
 */
public final class ClientConsume {
    private static final Map<String, String> OPTIONS = new HashMap<>();

    private static int number(String name, int otherwise) {
        return Integer.parseInt(OPTIONS.getOrDefault(name, String.valueOf(otherwise)));
    }

    public static void main(String[] args) throws Exception {
        for (int i = 1; i + 1 < args.length; i += 2) {
            OPTIONS.put(args[i].substring(2), args[i + 1]);
        }
        if (args[0].equals("decode")) {
            decode();
        } else {
            consume();
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // the client's shutdown takes seconds and measures nothing
    }

    private static void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_java_" + System.nanoTime());
        consumer.setNamesrvAddr(OPTIONS.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(number("batch", 1));
        consumer.setPullBatchSize(32);
        consumer.subscribe(OPTIONS.get("topic"), "*");
        int count = number("count", 100_000);
        int skip = count / 4; // its compilers warm up on the first quarter
        AtomicLong seen = new AtomicLong();
        AtomicLong bytes = new AtomicLong();
        AtomicLong from = new AtomicLong();
        AtomicLong skipped = new AtomicLong();
        AtomicLong to = new AtomicLong();
        AtomicLong counted = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long size = 0;
            for (MessageExt message : messages) {
                size += message.getBody().length;
            }
            bytes.addAndGet(size);
            long total = seen.addAndGet(messages.size());
            if (total >= skip && from.compareAndSet(0, System.nanoTime())) {
                skipped.set(total);
            }
            if (total >= count && to.compareAndSet(0, System.nanoTime())) {
                counted.set(total);
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!done.await(120, TimeUnit.SECONDS)) {
            System.out.println("{\"error\": \"only " + seen.get() + " of " + count + " messages arrived in 120 s\"}");
            return;
        }
        double took = (to.get() - from.get()) / 1e9;
        long measured = counted.get() - skipped.get();
        System.out.printf("{\"mode\": \"consume\", \"ok\": %d, \"seconds\": %.4f, \"per_second\": %.1f}%n", measured,
            took, measured / took);
    }

    private static void decode() throws Exception {
        byte[] bytes = Files.readAllBytes(Path.of(OPTIONS.get("file")));
        double seconds = Double.parseDouble(OPTIONS.getOrDefault("seconds", "3"));
        decodeFor(bytes, seconds); // its compilers warm up
        long begun = System.nanoTime();
        long count = decodeFor(bytes, seconds);
        double took = (System.nanoTime() - begun) / 1e9;
        System.out.printf("{\"mode\": \"decode\", \"ok\": %d, \"seconds\": %.4f, \"per_second\": %.1f}%n", count, took,
            count / took);
    }

    private static long decodeFor(byte[] bytes, double seconds) {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        long count = 0;
        while (System.nanoTime() < end) {
            for (int i = 0; i < 50; i++) {
                List<MessageExt> messages = MessageDecoder.decodes(ByteBuffer.wrap(bytes));
                count += messages.size();
            }
        }
        return count;
    }
}
