import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Unmodified Apache RocketMQ clients under remote control.
 *
 * Reads one command a line from standard input, "verb TAB query", and answers each with one line of JSON on standard
 * output: {"ok": value} or {"error": class, "message": text, "code": response code or null}. One JVM so serves a whole
 * test session. Ends, without a word to any server, when standard input ends.
 */
public final class Driver {
    private static final Map<String, Object> CLIENTS = new ConcurrentHashMap<>();

    private Driver() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Whatever a client or a tool prints must not mix with the answers.
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        answers.println("{\"ok\":\"ready\"}");
        answers.flush();
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(Json.of(answer(line)));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> answer(String line) {
        Map<String, Object> answer = new LinkedHashMap<>();
        int tab = line.indexOf('\t');
        try {
            answer.put("ok", run(line.substring(0, tab), new Request(line.substring(tab + 1))));
        } catch (Throwable thrown) {
            Throwable error = thrown instanceof InvocationTargetException ? thrown.getCause() : thrown;
            error.printStackTrace();
            answer.put("error", error.getClass().getSimpleName());
            answer.put("message", words(error));
            answer.put("code", responseCode(error));
        }
        return answer;
    }

    /** What it says and what its causes say: a producer keeps a broker's words in the last of them. */
    private static String words(Throwable error) {
        StringBuilder words = new StringBuilder(String.valueOf(error.getMessage()));
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            words.append("; caused by ").append(cause.getMessage());
        }
        return words.toString();
    }

    private static Integer responseCode(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                return ((MQBrokerException) cause).getResponseCode();
            }
            if (cause instanceof MQClientException && ((MQClientException) cause).getResponseCode() > 0) {
                return ((MQClientException) cause).getResponseCode();
            }
        }
        return null;
    }

    private static Object run(String verb, Request request) throws Exception {
        switch (verb) {
            case "producer":
                return add(request, new ProducerClient(request));
            case "push":
                return add(request, new PushClient(request));
            case "litepull":
                return add(request, new LitePullClient(request));
            case "send":
                return client(request, ProducerClient.class).send(request);
            case "publishqueues":
                return client(request, ProducerClient.class).queues(request.text("topic"));
            case "transactions":
                return client(request, ProducerClient.class).transactions();
            case "received":
                return client(request, PushClient.class).received(request.number("from", 0));
            case "queues":
                return client(request, PushClient.class).queues();
            case "position":
                return client(request, PushClient.class).position(request.text("topic"));
            case "litepulling":
                return client(request, LitePullClient.class).run(request);
            case "admin":
                return admin(request);
            case "shutdown":
                return shutdown(request.all("name"), !request.flag("background"));
            default:
                throw new IllegalArgumentException("no such command: " + verb);
        }
    }

    private static String add(Request request, Client client) throws Exception {
        if (CLIENTS.putIfAbsent(request.text("name"), client) != null) {
            throw new IllegalArgumentException("name is taken: " + request.text("name"));
        }
        Access.prepare(request);
        try {
            return client.start();
        } catch (Exception error) {
            CLIENTS.remove(request.text("name"));
            throw error;
        }
    }

    private static <T> T client(Request request, Class<T> kind) {
        Object client = CLIENTS.get(request.text("name"));
        if (client == null) {
            throw new IllegalArgumentException("no such client: " + request.text("name"));
        }
        return kind.cast(client);
    }

    /** All at once: a push consumer waits for its handlers. */
    private static int shutdown(List<String> names, boolean wait) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (String name : names) {
            Client client = (Client) CLIENTS.remove(name);
            if (client != null) {
                threads.add(new Thread(() -> Hurry.run(client::shutdown)));
            }
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            if (wait) {
                thread.join();
            }
        }
        return threads.size();
    }

    /** mqadmin in this process: what it would cost to start a JVM for each command is four seconds. */
    private static Map<String, String> admin(Request request) {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream outBytes = new ByteArrayOutputStream();
        ByteArrayOutputStream errBytes = new ByteArrayOutputStream();
        Access.prepare(request);
        boolean encrypted = Access.encryptByDefault(request.has("tls"));
        try {
            System.setOut(new PrintStream(outBytes, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errBytes, true, StandardCharsets.UTF_8));
            Hurry.run(() -> MQAdminStartup.main0(request.all("argument").toArray(new String[0]), null));
        } finally {
            Access.encryptByDefault(encrypted);
            System.out.flush();
            System.err.flush();
            System.setOut(out);
            System.setErr(err);
        }
        Map<String, String> printed = new LinkedHashMap<>();
        printed.put("out", outBytes.toString(StandardCharsets.UTF_8));
        printed.put("err", errBytes.toString(StandardCharsets.UTF_8));
        return printed;
    }
}
