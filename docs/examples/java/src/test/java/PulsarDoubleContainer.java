import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.wait.strategy.Wait;
import org.testcontainers.utility.DockerImageName;

/**
 * The image of {@code deploy/Dockerfile.double} with Testcontainers, on ports that Docker chooses.
 *
 * <pre>
 * static final PulsarDoubleContainer container = new PulsarDoubleContainer();
 * static { container.start(); }
 * {@literal @}RegisterExtension static final PulsarDouble broker = new PulsarDouble(container.serviceUrl(), container.adminUrl());
 * </pre>
 */
public final class PulsarDoubleContainer extends GenericContainer<PulsarDoubleContainer> {
  private static final int CLIENTS = 6650;
  private static final int ADMIN = 8080;

  /** The image that you have built. */
  public PulsarDoubleContainer() {
    super(DockerImageName.parse("magnetar-double"));
    withExposedPorts(CLIENTS, ADMIN);
    waitingFor(Wait.forHttp("/readyz").forPort(ADMIN));
  }

  /** Where clients connect. A lookup sends them on to nowhere else: they stay on the address that they know. */
  public String serviceUrl() {
    return "pulsar://" + getHost() + ":" + getMappedPort(CLIENTS);
  }

  /** Where the admin API and the calls of tests are. */
  public String adminUrl() {
    return "http://" + getHost() + ":" + getMappedPort(ADMIN);
  }
}
