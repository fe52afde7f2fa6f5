import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Runs pulsar-admin once per line of a file, in this process: a process for each takes seconds. */
public class Commands {
    /** Arguments: the client's configuration, the file. Prints "$ line", the output, and "=> exit code", after each line that there is. */
    public static void main(String[] arguments) throws Exception {
        Class<?> tool = Class.forName("org.apache.pulsar.admin.cli.PulsarAdminTool");
        method(tool, "setAllowSystemExit", boolean.class).invoke(null, false);
        PrintStream out = System.out;
        try (BufferedReader lines = Files.newBufferedReader(Path.of(arguments[1]))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                List<String> words = new ArrayList<>(List.of(arguments[0]));
                words.addAll(List.of(line.split(" ")));
                method(tool, "resetLastExitCode").invoke(null);
                out.println("$ " + line);
                ByteArrayOutputStream said = new ByteArrayOutputStream();
                System.setOut(new PrintStream(said));  // some commands close it
                method(tool, "main", String[].class).invoke(null, (Object) words.toArray(String[]::new));
                System.out.flush();
                out.println(said);
                out.println("=> " + method(tool, "getLastExitCode").invoke(null));
            }
        }
        System.exit(0);
    }

    private static Method method(Class<?> tool, String name, Class<?>... parameters) throws Exception {
        Method found = tool.getDeclaredMethod(name, parameters);
        found.setAccessible(true);
        return found;
    }
}
