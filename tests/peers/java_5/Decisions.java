import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Supplier;
import org.apache.rocketmq.auth.authentication.model.Subject;
import org.apache.rocketmq.auth.authentication.model.User;
import org.apache.rocketmq.auth.authorization.chain.AclAuthorizationHandler;
import org.apache.rocketmq.auth.authorization.context.DefaultAuthorizationContext;
import org.apache.rocketmq.auth.authorization.exception.AuthorizationException;
import org.apache.rocketmq.auth.authorization.model.Acl;
import org.apache.rocketmq.auth.authorization.model.Resource;
import org.apache.rocketmq.auth.authorization.provider.AuthorizationMetadataProvider;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.broker.auth.converter.AclConverter;
import org.apache.rocketmq.common.action.Action;
import org.apache.rocketmq.common.resource.ResourcePattern;
import org.apache.rocketmq.common.resource.ResourceType;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.AclInfo;

/**
 * What Apache's classes decide. Lines in: Acl as JSON, kind of resource, its name, actions, address, with tabs between
 * them. Lines out: "allow" or the text of the refusal, a tab, and the Acl as the broker would answer with it.
 */
public class Decisions {
    static Acl current;

    public static class OneAcl implements AuthorizationMetadataProvider {
        public void initialize(AuthConfig config, Supplier<?> service) {
        }

        public void shutdown() {
        }

        public CompletableFuture<Void> createAcl(Acl acl) {
            throw new UnsupportedOperationException();
        }

        public CompletableFuture<Void> deleteAcl(Subject subject) {
            throw new UnsupportedOperationException();
        }

        public CompletableFuture<Void> updateAcl(Acl acl) {
            throw new UnsupportedOperationException();
        }

        public CompletableFuture<Acl> getAcl(Subject subject) {
            return CompletableFuture.completedFuture(current);
        }

        public CompletableFuture<List<Acl>> listAcl(String subject, String resource) {
            throw new UnsupportedOperationException();
        }
    }

    public static void main(String[] arguments) throws Exception {
        AuthConfig config = new AuthConfig();
        config.setConfigName("decisions");
        config.setAuthorizationMetadataProvider(OneAcl.class.getName());
        AclAuthorizationHandler handler = new AclAuthorizationHandler(config);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t");
            byte[] json = fields[0].getBytes(StandardCharsets.UTF_8);
            current = AclConverter.convertAcl(RemotingSerializable.decode(json, AclInfo.class));
            Resource asked = Resource.of(ResourceType.getByName(fields[1]), fields[2], ResourcePattern.LITERAL);
            List<Action> actions = new ArrayList<>();
            for (String action : fields[3].split(",")) {
                actions.add(Action.getByName(action));
            }
            String decided = "allow";
            try {
                handler.handle(
                    DefaultAuthorizationContext.of((Subject) User.of("u"), asked, actions, fields[4]), null).get();
            } catch (ExecutionException error) {
                decided = error.getCause().getMessage();
            } catch (AuthorizationException error) {
                decided = error.getMessage();
            }
            byte[] answer = RemotingSerializable.encode(AclConverter.convertAcl(current));
            System.out.println(decided + "\t" + new String(answer, StandardCharsets.UTF_8));
        }
    }
}
