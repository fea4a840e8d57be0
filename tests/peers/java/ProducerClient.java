import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer. A transactional one takes the outcome from the message's own properties: "local" is what the local
 * transaction says, "check" what the check-back says from its "checkAfter"-th time on (before that: unknown). One
 * that was made "undecided" answers every check with unknown.
 */
final class ProducerClient extends Client implements TransactionListener {
    private final DefaultMQProducer producer;
    private final List<Map<String, Object>> transactions = new ArrayList<>();
    private final Map<String, Integer> checks = new ConcurrentHashMap<>();
    private final boolean undecided;

    ProducerClient(Request request) {
        undecided = request.flag("undecided");
        if (request.flag("transactional")) {
            TransactionMQProducer transactional = new TransactionMQProducer(request.text("group"), Access.hook(request));
            transactional.setTransactionListener(this);
            producer = transactional;
        } else {
            producer = new DefaultMQProducer(request.text("group"), Access.hook(request));
        }
        configure(producer, request);
        producer.setCompressMsgBodyOverHowmuch(request.number("compressOver", 4096));
        producer.setSendMsgTimeout(request.number("timeout", 10000));
        producer.setRetryTimesWhenSendFailed(request.number("retries", 2));
        producer.setDefaultTopicQueueNums(request.number("topicQueues", 4));
    }

    @Override
    String start() throws Exception {
        producer.start();
        return producer.buildMQClientId();
    }

    @Override
    void shutdown() {
        producer.shutdown();
    }

    List<Object> queues(String topic) throws Exception {
        return show(producer.fetchPublishMessageQueues(topic));
    }

    List<Object> send(Request request) throws Exception {
        List<Request> specifications = request.parts("message");
        List<Object> results = new ArrayList<>();
        if (request.text("mode").equals("batch")) {
            List<Message> messages = new ArrayList<>();
            for (Request specification : specifications) {
                messages.add(message(specification));
            }
            results.add(show(producer.send(messages)));
        } else if (request.text("mode").equals("async")) {
            List<CompletableFuture<SendResult>> pending = new ArrayList<>();
            for (Request specification : specifications) {
                pending.add(sendAsync(message(specification)));
            }
            for (CompletableFuture<SendResult> future : pending) {
                results.add(show(result(future)));
            }
        } else {
            for (Request specification : specifications) {
                results.add(show(sendOne(request.text("mode"), specification)));
            }
        }
        return results;
    }

    private SendResult sendOne(String mode, Request specification) throws Exception {
        Message message = message(specification);
        switch (mode) {
            case "sync":
                return producer.send(message);
            case "ordered":
                return producer.send(message, new SelectMessageQueueByHash(), specification.text("order"));
            case "queue":
                return producer.send(message, queue(specification));
            case "oneway":
                producer.sendOneway(message);
                return null;
            case "transaction":
                return producer.sendMessageInTransaction(message, null);
            default:
                throw new IllegalArgumentException("no such way to send: " + mode);
        }
    }

    private CompletableFuture<SendResult> sendAsync(Message message) throws Exception {
        CompletableFuture<SendResult> future = new CompletableFuture<>();
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                future.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                future.completeExceptionally(error);
            }
        });
        return future;
    }

    private static SendResult result(CompletableFuture<SendResult> future) throws Exception {
        try {
            return future.get(30, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception ? (Exception) error.getCause() : error;
        }
    }

    private static Message message(Request specification) {
        Message message = new Message(specification.text("topic"), specification.bytes("body"));
        if (specification.has("tags")) {
            message.setTags(specification.text("tags"));
        }
        if (specification.has("keys")) {
            message.setKeys(specification.text("keys"));
        }
        if (specification.has("delay")) {
            message.setDelayTimeLevel(specification.number("delay"));
        }
        if (specification.has("flag")) {
            message.setFlag(specification.number("flag"));
        }
        for (Request property : specification.parts("property")) {
            message.putUserProperty(property.text("name"), property.text("value"));
        }
        return message;
    }

    private static Map<String, Object> show(SendResult result) {
        if (result == null) {
            return null;
        }
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("status", result.getSendStatus().name());
        shown.put("message_id", result.getMsgId());
        shown.put("offset_id", result.getOffsetMsgId());
        shown.put("broker", result.getMessageQueue().getBrokerName());
        shown.put("queue_id", result.getMessageQueue().getQueueId());
        shown.put("queue_offset", result.getQueueOffset());
        shown.put("transaction_id", result.getTransactionId());
        shown.put("region_id", result.getRegionId());
        shown.put("local_state", result instanceof TransactionSendResult
            ? ((TransactionSendResult) result).getLocalTransactionState().name() : null);
        return shown;
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        note("local", message.getTransactionId(), message, null);
        return state(message.getUserProperty("local"));
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        int times = checks.merge(message.getTransactionId(), 1, Integer::sum);
        note("check", message.getTransactionId(), message, show(message));
        String after = message.getUserProperty("checkAfter");
        boolean decided = !undecided && (after == null || times >= Integer.parseInt(after));
        return state(decided ? message.getUserProperty("check") : "unknown");
    }

    private static LocalTransactionState state(String outcome) {
        switch (String.valueOf(outcome)) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "throw":
                throw new IllegalStateException("the local transaction failed, as the test asked");
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    private void note(String event, String transactionId, Message message, Map<String, Object> shown) {
        Map<String, Object> noted = new LinkedHashMap<>();
        noted.put("event", event);
        noted.put("transaction_id", transactionId);
        noted.put("body", message.getBody());
        noted.put("message", shown);
        synchronized (transactions) {
            transactions.add(noted);
        }
    }

    List<Object> transactions() {
        synchronized (transactions) {
            return new ArrayList<>(transactions);
        }
    }
}
