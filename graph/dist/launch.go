package dist

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Command is a program whose processes are the ranks of a job on this host. The zero value is this program with its own
// arguments.
type Command struct {
	Path           string        // empty: this program
	Args           []string      // without the name; nil with an empty Path: those of this program
	Env            []string      // in addition to this program's environment
	Stdout, Stderr io.Writer     // of rank 0; the others' lines go to Stderr, behind their rank. nil: those of this program
	Grace          time.Duration // how long the others have to end after one has failed; 0 means 5 seconds
}

const defaultGrace = 5 * time.Second

// Launch runs n processes of a program, the ranks of a job with a random secret and a port of the loopback interface,
// and waits for them: see FromEnv. When ctx ends, it interrupts them, and waits for as long as they take. When one
// fails, the others end by themselves, or get SIGTERM after Grace and SIGKILL after as long again. The error lists the
// ranks that have failed, the first one first. When this process ends, however it ends, the groups of the ranks fail;
// a rank that has not closed its group after 10 seconds kills itself.
func Launch(ctx context.Context, n int, c Command) (err error) {
	defer fault.Name(&err, "dist", fmt.Sprintf("%d ranks", n))
	if n < 1 {
		return errors.New("want at least 1")
	}
	if c.Path == "" {
		if c.Path, err = os.Executable(); err != nil {
			return err
		}
		if c.Args == nil {
			c.Args = os.Args[1:]
		}
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if _, file := c.Stderr.(*os.File); !file { // several goroutines write to it
		c.Stderr = &locked{w: c.Stderr}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer socket.Close()
	ends, lifeline, err := os.Pipe() // the end of this process closes lifeline
	if err != nil {
		return err
	}
	defer lifeline.Close()
	defer ends.Close()
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // it never fails
	ranks := make([]*process, n)
	ended := make(chan *process, n)
	for i := range ranks {
		port := listener.Addr().(*net.TCPAddr).Port
		env := []string{"RANK=" + strconv.Itoa(i), "LOCAL_RANK=" + strconv.Itoa(i), "WORLD_SIZE=" + strconv.Itoa(n),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + strconv.Itoa(port), "TORCHELASTIC_USE_AGENT_STORE=",
			"NSA_DDP_SECRET=" + hex.EncodeToString(secret), "NSA_DDP_PARENT=3"}
		files := []*os.File{ends}
		if i == 0 {
			files, env[len(env)-1] = append(files, socket), "NSA_DDP_PARENT=3,4"
		}
		if ranks[i], err = c.start(i, env, files); err != nil {
			err = fmt.Errorf("rank %d: %w", i, err)
			n = i
			break
		}
		go func() { ranks[i].err = ranks[i].wait(); ended <- ranks[i] }()
	}
	_ = errors.Join(socket.Close(), listener.Close()) // rank 0 has it
	return supervise(ctx, ranks[:n], ended, cmp.Or(c.Grace, defaultGrace), err)
}

// process is a rank of Launch.
type process struct {
	*exec.Cmd
	rank   int
	err    error // how it has ended
	output sync.WaitGroup
	last   *lastLine
}

func (p *process) wait() error {
	p.output.Wait()
	return p.Cmd.Wait()
}

func (c *Command) start(rank int, env []string, files []*os.File) (*process, error) {
	p := &process{Cmd: exec.Command(c.Path, c.Args...), rank: rank, last: &lastLine{}}
	p.Env = append(append(os.Environ(), c.Env...), env...)
	p.ExtraFiles = files
	ownGroup(p.Cmd)
	if rank == 0 {
		p.Stdout, p.Stderr = c.Stdout, c.Stderr
		return p, p.Start()
	}
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	errs, err := p.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	for _, r := range []io.Reader{out, errs} {
		p.output.Go(func() { p.copyLines(c.Stderr, r) })
	}
	return p, nil
}

// locked is a writer for several goroutines.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// lastLine is the last line that a rank has written.
type lastLine struct {
	mu   sync.Mutex
	text string
}

// copyLines copies lines, behind the rank, and the end of a line that is too long as another line.
func (p *process) copyLines(w io.Writer, r io.Reader) {
	lines := bufio.NewReaderSize(r, 1<<16)
	for {
		line, err := lines.ReadSlice('\n')
		if text := bytes.TrimRight(line, "\r\n"); len(text) > 0 {
			p.last.mu.Lock()
			fmt.Fprintf(w, "rank %d: %s\n", p.rank, text)
			p.last.text = string(text)
			p.last.mu.Unlock()
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// supervise waits for the ranks. err is why some have not been started.
func supervise(ctx context.Context, ranks []*process, ended <-chan *process, grace time.Duration, err error) error {
	var end, kill <-chan time.Time
	stop := ctx.Done()
	signal := func(f func(*process)) {
		for _, p := range ranks { // a signal to one that has ended is an error
			f(p)
		}
	}
	if err != nil {
		end = time.After(0)
	}
	for left := len(ranks); left > 0; {
		select {
		case p := <-ended:
			left--
			if p.err != nil && ctx.Err() == nil {
				if err == nil {
					end = time.After(grace)
				}
				err = errors.Join(err, p.failure())
			}
		case <-stop:
			stop = nil
			signal((*process).interrupt)
		case <-end:
			signal((*process).terminate)
			kill = time.After(grace)
		case <-kill:
			kill = nil
			signal(func(p *process) { _ = p.Process.Kill() })
		}
	}
	if err == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// failure says how a rank has ended.
func (p *process) failure() error {
	p.last.mu.Lock()
	defer p.last.mu.Unlock()
	if p.last.text != "" && !strings.Contains(p.err.Error(), "signal") {
		return fmt.Errorf("rank %d: %w: %s", p.rank, p.err, p.last.text)
	}
	return fmt.Errorf("rank %d: %w", p.rank, p.err)
}
