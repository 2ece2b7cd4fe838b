package generate

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// failing is a writer of a broken file.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: f.err}
}

// TestOutputFails: a closed pipe ends the program without a word, and a full disk with an error, also for the help.
func TestOutputFails(t *testing.T) {
	for _, args := range [][]string{{"-help"}, {"-model", weightsFile(t), "-device", "cpu", "-tokens", "5", "-past-end"}} {
		var status bytes.Buffer
		require.Zero(t, Main(args, strings.NewReader("prompt"), failing{syscall.EPIPE}, &status))
		require.NotContains(t, status.String(), "generate: ")
		require.Equal(t, 1, Main(args, strings.NewReader("prompt"), failing{syscall.ENOSPC}, &status))
		require.Equal(t, 1, strings.Count(status.String(), "generate: "), status.String())
	}
}

// collected keeps what a program writes.
type collected struct {
	mutex sync.Mutex
	text  strings.Builder
}

func (c *collected) Write(p []byte) (int, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.text.Write(p)
}

func (c *collected) String() string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.text.String()
}

// process is the program in a process of its own.
type process struct {
	testing.TB
	cmd         *exec.Cmd
	in          io.WriteCloser
	out, status collected
}

func startProcess(t *testing.T, args ...string) *process {
	if runtime.GOOS == "windows" || signal.Ignored(syscall.SIGINT) {
		t.Skip("a process cannot be sent an interrupt")
	}
	p := &process{TB: t, cmd: exec.Command(testutil.Must(os.Executable())(t))}
	p.cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(append([]string{"-device", "cpu"}, args...), "\n"))
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.status
	p.in = testutil.Must(p.cmd.StdinPipe())(t)
	require.NoError(t, p.cmd.Start())
	late := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	t.Cleanup(func() { late.Stop() })
	return p
}

// await waits until a condition is true.
func (p *process) await(condition func() bool) {
	p.Helper()
	require.Eventually(p, condition, time.Minute, time.Millisecond, p.status.String())
}

// requireExit waits for the end of the program and checks its status.
func (p *process) requireExit(code int) {
	p.Helper()
	if err := p.cmd.Wait(); err != nil {
		require.ErrorAs(p, err, new(*exec.ExitError), p.status.String())
	}
	require.Equal(p, code, p.cmd.ProcessState.ExitCode(), p.status.String())
}

// TestSignal: Ctrl-C ends an endless text after a whole character. The program reports its speed and exits with 128 + n.
func TestSignal(t *testing.T) {
	p := startProcess(t, "-model", weightsFile(t), "-tokens", "0", "-past-end")
	require.NoError(t, p.in.Close())
	p.await(func() bool { return len(p.out.String()) > 100 })
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	p.requireExit(128 + int(syscall.SIGINT))
	require.True(t, utf8.ValidString(p.out.String()))
	require.Regexp(t, `interrupt: the text ends here; a second one leaves at once\nprefill: .*; decode: .*\n$`, p.status.String())
}

// TestInterruptInDialog: an interrupt ends the text that streams and no more; the next line is answered. An interrupt at the prompt ends the
// program, and so does the end of the input.
func TestInterruptInDialog(t *testing.T) {
	model := weightsFile(t)
	for _, c := range []struct {
		code int
		end  func(p *process)
	}{
		{128 + int(syscall.SIGINT), func(p *process) { require.NoError(p, p.cmd.Process.Signal(syscall.SIGINT)) }},
		{0, func(p *process) { require.NoError(p, p.in.Close()) }},
		{128 + int(syscall.SIGTERM), func(p *process) { require.NoError(p, p.cmd.Process.Signal(syscall.SIGTERM)) }},
	} {
		p := startProcess(t, "-model", model, "-interactive", "-tokens", "0", "-past-end")
		for answers := 1; answers <= 2; answers++ {
			p.await(func() bool { return strings.Count(p.status.String(), "> ") == answers })
			before := len(p.out.String())
			testutil.Must(io.WriteString(p.in, "one\n"))(t)
			p.await(func() bool { return len(p.out.String()) > before+100 })
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
		}
		p.await(func() bool { return strings.Count(p.status.String(), "> ") == 3 })
		p.await(func() bool { return strings.HasSuffix(p.out.String(), "\n") }) // the text ends its line
		c.end(p)
		p.requireExit(c.code)
		require.Regexp(t, `prefill: .*; decode: .*\n$`, p.status.String())
	}
}

// TestFitsTerminal: at each width no row of the terminal is broken, also by wide characters.
func TestFitsTerminal(t *testing.T) {
	args := []string{"-model", weightsFile(t), "-device", "cpu", "-tokens", "60", "-past-end", "-echo", "-n", "2", "-prompt", "日本語 größe\tx " + strings.Repeat("語", 150)}
	for _, columns := range []int{20, 33, 40, 60, 80, 132, 200} {
		s := &testutil.Screen{Width: columns}
		require.Zero(t, Main(args, nil, s, s))
		require.Zero(t, s.Broken, "%d: %q", columns, s.Lines())
		require.Zero(t, Main([]string{"-help"}, nil, s, s))
		require.Equal(t, 2, Main([]string{"-top-p", "3"}, nil, s, s))
		require.Equal(t, 1, Main([]string{"-model", strings.Repeat("/missing", 20)}, nil, s, s))
		require.Zero(t, s.Broken, "%d: %q", columns, s.Lines())
	}
}
