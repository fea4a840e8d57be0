import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The arguments of one command, sent as a URL query: names may repeat, a value may be a query itself. */
final class Request {
    private final Map<String, List<String>> values = new LinkedHashMap<>();

    Request(String query) {
        for (String pair : query.split("&")) {
            int equals = pair.indexOf('=');
            if (equals >= 0) {
                values.computeIfAbsent(decode(pair.substring(0, equals)), name -> new ArrayList<>())
                    .add(decode(pair.substring(equals + 1)));
            }
        }
    }

    private static String decode(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }

    List<String> all(String name) {
        return values.getOrDefault(name, List.of());
    }

    List<Request> parts(String name) {
        List<Request> parts = new ArrayList<>();
        for (String query : all(name)) {
            parts.add(new Request(query));
        }
        return parts;
    }

    boolean has(String name) {
        return values.containsKey(name);
    }

    String text(String name) {
        if (!has(name)) {
            throw new IllegalArgumentException("argument missing: " + name);
        }
        return values.get(name).get(0);
    }

    String text(String name, String otherwise) {
        return has(name) ? text(name) : otherwise;
    }

    int number(String name) {
        return Integer.parseInt(text(name));
    }

    int number(String name, int otherwise) {
        return has(name) ? number(name) : otherwise;
    }

    long big(String name) {
        return Long.parseLong(text(name));
    }

    boolean flag(String name) {
        return "true".equals(text(name, "false"));
    }

    byte[] bytes(String name) {
        return Base64.getDecoder().decode(text(name));
    }
}
