import java.util.ArrayList;
import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A lite pull consumer: subscribed to a topic, or with queues assigned by the test. */
final class LitePullClient extends Client {
    private final DefaultLitePullConsumer consumer;

    LitePullClient(Request request) throws Exception {
        consumer = new DefaultLitePullConsumer(request.text("group"), Access.hook(request));
        configure(consumer, request);
        consumer.setAutoCommit(!request.flag("manualCommit"));
        consumer.setAutoCommitIntervalMillis(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(request.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        for (Request subscription : request.parts("subscription")) {
            consumer.subscribe(subscription.text("topic"), subscription.text("tags", "*"));
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

    Object run(Request request) throws Exception {
        switch (request.text("action")) {
            case "poll":
                List<Object> messages = new ArrayList<>();
                for (MessageExt message : consumer.poll(request.big("timeout"))) {
                    messages.add(show(message));
                }
                return messages;
            case "fetch":
                return show(consumer.fetchMessageQueues(request.text("topic")));
            case "assign":
                List<MessageQueue> queues = new ArrayList<>();
                for (Request queue : request.parts("queues")) {
                    queues.add(queue(queue));
                }
                consumer.assign(queues);
                return null;
            case "assignment":
                return show(consumer.assignment());
            case "seek":
                consumer.seek(queue(request), request.big("offset"));
                return null;
            case "commit":
                consumer.commitSync();
                return null;
            case "committed":
                return consumer.committed(queue(request));
            case "offsetForTimestamp":
                return consumer.offsetForTimestamp(queue(request), request.big("timestamp"));
            default:
                throw new IllegalArgumentException("no such action: " + request.text("action"));
        }
    }
}
