import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A broker for the tests of an application that uses Apache Pulsar, with a clock that stands still until a test moves it (JUnit 5).
 *
 * <p>{@code @RegisterExtension static final PulsarDouble broker = new PulsarDouble();}
 *
 * <p>It starts {@code magnetar-double} once for all tests of a JVM; the environment variable MAGNETAR_DOUBLE has another command, if it is
 * set. Before each test, it is as after its start. Copy this file; it needs JUnit and nothing else.
 */
public final class PulsarDouble implements BeforeEachCallback {
  private static final HttpClient HTTP = HttpClient.newHttpClient();
  private static PulsarDouble started;

  private String serviceUrl;
  private String adminUrl;
  private final boolean mapped;

  /** A process on this machine, on free ports. */
  public PulsarDouble() {
    mapped = false;
  }

  /** A broker that runs elsewhere, such as in a container: its addresses as they are here. They stay the same for all tests. */
  public PulsarDouble(String serviceUrl, String adminUrl) {
    this.serviceUrl = serviceUrl;
    this.adminUrl = adminUrl;
    mapped = true;
  }

  /** Where the clients of this test connect: {@code pulsar://localhost:PORT}. Each test has another one. */
  public String serviceUrl() {
    return serviceUrl;
  }

  /** Where the admin API is: {@code http://localhost:PORT}. */
  public String adminUrl() {
    return adminUrl;
  }

  /** Moves the broker's clock on. Returns the time then, in ms since the epoch. */
  public long advance(Duration time) {
    return Long.parseLong(field(call("POST", "/clock", "{\"advance\": " + time.toMillis() + "}"), "now"));
  }

  /** The time on the broker's clock, in ms since the epoch. */
  public long now() {
    return Long.parseLong(field(call("GET", "/clock", null), "now"));
  }

  /**
   * Calls the API of tests, which {@code /magnetar/v1/openapi.json} describes: {@code call("POST", "/faults", "{\"action\": \"error\"}")}.
   * Returns the JSON of the answer.
   */
  public String call(String method, String path, String json) {
    return send(method, "/magnetar/v1" + path, json);
  }

  /** Calls Pulsar's admin API: {@code admin("GET", "/persistent/public/default", null)}. Returns the body of the answer. */
  public String admin(String method, String path, String json) {
    return send(method, "/admin/v2" + path, json);
  }

  @Override
  public void beforeEach(ExtensionContext context) throws IOException {
    synchronized (PulsarDouble.class) {
      if (!mapped && started == null) {
        start();
        started = this;
      }
      adminUrl = mapped ? adminUrl : started.adminUrl;
    }
    begin(context.getUniqueId());
  }

  /** Makes the broker as after its start, for the test of this name. Clients of earlier tests find nobody any more. */
  public void begin(String name) {
    String quoted = "\"" + name.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    String begun = call("POST", "/tests", "{\"name\": " + quoted + ", \"same_address\": " + mapped + "}");
    serviceUrl = mapped ? serviceUrl : field(begun, "service_url");
  }

  private void start() throws IOException {
    String program = System.getenv().getOrDefault("MAGNETAR_DOUBLE", "magnetar-double");
    List<String> command = new ArrayList<>(List.of(program.split(" ")));
    command.addAll(List.of("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--ready-file", "-", "--end-with-stdin"));
    // Its standard input ends with this process, however that ends, and it ends with its standard input.
    Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    String line =
        new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8)).readLine();
    if (line == null) {
      throw new IOException(program + " did not start");
    }
    adminUrl = field(line, "admin_url");
  }

  private String send(String method, String path, String json) {
    HttpRequest.BodyPublisher body =
        json == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(json);
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(adminUrl + path))
            .header("Content-Type", "application/json")
            .timeout(Duration.ofSeconds(30))
            .method(method, body)
            .build();
    try {
      HttpResponse<String> answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
      if (answer.statusCode() >= 300) {
        throw new IllegalStateException(method + " " + path + ": " + answer.statusCode() + " " + answer.body());
      }
      return answer.body();
    } catch (IOException error) {
      throw new IllegalStateException(method + " " + path + ": the broker has ended", error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException(error);
    }
  }

  /** A text or a number of a flat JSON object. */
  private static String field(String json, String name) {
    Matcher found = Pattern.compile("\"" + name + "\": ?\"?([^\",}]*)").matcher(json);
    if (!found.find()) {
      throw new IllegalStateException("no " + name + " in " + json);
    }
    return found.group(1);
  }
}
