import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;

import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What producers and consumers share: settings, and how messages and queues are shown. */
abstract class Client {
    abstract String start() throws Exception;

    abstract void shutdown();

    static void configure(ClientConfig config, Request request) {
        config.setNamesrvAddr(request.text("namesrv"));
        if (request.has("instance")) {
            config.setInstanceName(request.text("instance"));
        }
        Access.encrypt(config, request);
        config.setPollNameServerInterval(request.number("pollRoute", 1000));
        config.setHeartbeatBrokerInterval(request.number("heartbeat", 1000));
        config.setPersistConsumerOffsetInterval(request.number("persist", 500));
    }

    static Map<String, Object> show(MessageExt message) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("topic", message.getTopic());
        shown.put("broker", message.getBrokerName());
        shown.put("queue_id", message.getQueueId());
        shown.put("queue_offset", message.getQueueOffset());
        shown.put("commitlog_offset", message.getCommitLogOffset());
        shown.put("message_id", message.getMsgId());
        shown.put("offset_id", message instanceof MessageClientExt
            ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
        shown.put("keys", message.getKeys());
        shown.put("tags", message.getTags());
        shown.put("body", message.getBody());
        shown.put("flag", message.getFlag());
        shown.put("system_flag", message.getSysFlag());
        shown.put("reconsume_times", message.getReconsumeTimes());
        shown.put("store_size", message.getStoreSize());
        shown.put("born_timestamp", message.getBornTimestamp());
        shown.put("store_timestamp", message.getStoreTimestamp());
        shown.put("store_host", String.valueOf(message.getStoreHost()).replace("/", ""));
        shown.put("transaction_offset", message.getPreparedTransactionOffset());
        shown.put("properties", message.getProperties());
        return shown;
    }

    static List<Object> show(Collection<MessageQueue> queues) {
        List<Object> shown = new ArrayList<>();
        for (MessageQueue queue : new TreeSet<>(queues)) {
            shown.add(List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
        }
        return shown;
    }

    static MessageQueue queue(Request request) {
        return new MessageQueue(request.text("topic"), request.text("broker"), request.number("queue"));
    }
}
