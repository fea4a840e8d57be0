import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;

/**
 * As whom a client speaks to its servers: "accessKey" and "secretKey" sign its requests, "tls" names a file of Apache's
 * tls.client.* settings.
 *
 * Apache keeps those settings in static fields and reads them from the file whenever a client is made, so one JVM can
 * hold clients with different certificates if each file gives every setting.
 */
final class Access {
    private Access() {
    }

    /** Null, as Apache's constructors take it, for a client that signs nothing. */
    static RPCHook hook(Request request) {
        if (!request.has("accessKey")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(request.text("accessKey"), request.text("secretKey")));
    }

    static void encrypt(ClientConfig config, Request request) {
        if (request.has("tls")) {
            config.setUseTLS(true);
        }
    }

    /** Call it before the connections of a client, or of mqadmin, are made. */
    static void prepare(Request request) {
        if (request.has("tls")) {
            TlsSystemConfig.tlsConfigFile = request.text("tls");
        }
    }

    /** mqadmin makes its clients itself and they take the default. Returns what the default was before. */
    static boolean encryptByDefault(boolean wanted) {
        boolean before = TlsSystemConfig.tlsEnable;
        System.setProperty(TlsSystemConfig.TLS_ENABLE, String.valueOf(wanted));
        TlsSystemConfig.tlsEnable = wanted;
        return before;
    }
}
