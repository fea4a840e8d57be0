import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A push consumer that notes everything it is given, and fails each message as often as it was told to. */
final class PushClient extends Client {
    private final DefaultMQPushConsumer consumer;
    private final List<Map<String, Object>> received = new ArrayList<>();
    private final Map<String, Integer> attempts = new ConcurrentHashMap<>();
    private final int failures;
    private final int handlerMillis;

    PushClient(Request request) throws Exception {
        failures = request.number("failures", 0);
        handlerMillis = request.number("handlerMillis", 0);
        consumer = new DefaultMQPushConsumer(
            request.text("group"), Access.hook(request), new AllocateMessageQueueAveragely());
        configure(consumer, request);
        // 4.9 and 5.x keep this enumeration in different packages: no import can name it for both.
        consumer.setMessageModel(Enum.valueOf(
            consumer.getMessageModel().getDeclaringClass(), request.text("model", "CLUSTERING")));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(request.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        consumer.setMaxReconsumeTimes(request.number("maxReconsumeTimes", -1));
        consumer.setConsumeThreadMin(request.number("threads", 4));
        consumer.setConsumeThreadMax(request.number("threads", 4));
        consumer.setConsumeMessageBatchMaxSize(request.number("batch", 1));
        consumer.setSuspendCurrentQueueTimeMillis(request.number("suspendMillis", 100));
        if (request.flag("circle")) {
            consumer.setAllocateMessageQueueStrategy(new AllocateMessageQueueAveragelyByCircle());
        }
        for (Request subscription : request.parts("subscription")) {
            if (subscription.has("sql")) {
                consumer.subscribe(subscription.text("topic"), MessageSelector.bySql(subscription.text("sql")));
            } else {
                consumer.subscribe(subscription.text("topic"), subscription.text("tags", "*"));
            }
        }
        if (request.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) this::consumeOrderly);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) this::consumeConcurrently);
        }
    }

    @Override
    String start() throws Exception {
        consumer.start();
        return consumer.buildMQClientId();
    }

    @Override
    void shutdown() {
        consumer.shutdown();
    }

    private ConsumeConcurrentlyStatus consumeConcurrently(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        return consume(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
    }

    private ConsumeOrderlyStatus consumeOrderly(List<MessageExt> messages, ConsumeOrderlyContext context) {
        return consume(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
    }

    private boolean consume(List<MessageExt> messages) {
        boolean good = true;
        for (MessageExt message : messages) {
            Map<String, Object> shown = show(message);
            shown.put("at_nanos", System.nanoTime());
            synchronized (received) {
                received.add(shown);
            }
            int attempt = attempts.merge(message.getMsgId(), 1, Integer::sum);
            good &= failures >= 0 && attempt > failures;
        }
        if (handlerMillis > 0) {
            try {
                Thread.sleep(handlerMillis);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }
        return good;
    }

    List<Object> received(int from) {
        synchronized (received) {
            return new ArrayList<>(received.subList(Math.min(from, received.size()), received.size()));
        }
    }

    /** The offsets this member would commit now, summed over the queues of a topic that it holds. */
    long position(String topic) {
        long sum = 0;
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().keySet()) {
            if (queue.getTopic().equals(topic)) {
                sum += Math.max(0, consumer.getDefaultMQPushConsumerImpl().getOffsetStore()
                    .readOffset(queue, ReadOffsetType.READ_FROM_MEMORY));
            }
        }
        return sum;
    }

    /** The queues this member holds at this moment, retry topic included. */
    List<Object> queues() {
        List<MessageQueue> held = new ArrayList<>();
        for (Map.Entry<MessageQueue, ProcessQueue> entry : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().entrySet()) {
            if (!entry.getValue().isDropped()) {
                held.add(entry.getKey());
            }
        }
        return show(held);
    }
}
