//go:build unix

package dist_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
)

// TestMain runs the tests or, as a child of one of them, a rank.
func TestMain(m *testing.M) {
	switch os.Getenv("DIST_TEST") {
	case "":
		_ = flag.Set("test.parallel", "16") // most tests wait
		goleak.VerifyTestMain(m)
	case "parent":
		fmt.Println(dist.Launch(context.Background(), 3, dist.Command{Env: []string{"DIST_TEST=rank"}, Stderr: io.Discard}))
	default:
		// until it has written how it ended: the signal may come when another rank has already told it to stop
		stop, end := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer end()
		err := beRank(stop)
		name := filepath.Join(os.Getenv("DIST_TEST_DIR"), os.Getenv("RANK"))
		_ = os.WriteFile(name+".tmp", fmt.Append(nil, err), 0o644)
		_ = os.Rename(name+".tmp", name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
	}
}

// beRank takes short steps until something goes wrong, or stop ends. Rank 1 has the fault of the test in step 5.
func beRank(stop context.Context) (err error) {
	o, _, err := dist.FromEnv()
	if err != nil {
		return err
	}
	faulty, fault := o.Rank == 1, os.Getenv("DIST_TEST_FAULT")
	if faulty && fault == "never comes" {
		time.Sleep(time.Hour)
	}
	if faulty && fault == "exits early" {
		return errors.New("no device")
	}
	o.FirstTimeout, o.Timeout, o.Silence = 3*time.Second, 2500*time.Millisecond, 1500*time.Millisecond
	g, err := dist.Join(context.Background(), o)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			g.Fail(err)
		}
		err = errors.Join(err, g.Close())
	}()
	facts := map[string]string{"model": "m"}
	if faulty && fault == "other model" {
		facts["model"] = "n"
	}
	if err := graph.Agree(g, facts); err != nil {
		return err
	}
	for step := 1; ; step++ {
		own := []byte{0}
		if stop.Err() != nil {
			own[0] = 1
		}
		all, err := g.AllGather("step", own)
		if err != nil {
			return err
		}
		for _, theirs := range all {
			if theirs[0] == 1 { // all ranks stop after the same step
				return nil
			}
		}
		g.Watch(fmt.Sprint("step ", step), func() (bool, error) { return true, nil })
		if step == 5 {
			_ = os.WriteFile(filepath.Join(os.Getenv("DIST_TEST_DIR"), "running"+strconv.Itoa(o.Rank)), fmt.Append(nil, os.Getpid()), 0o644)
		}
		if step == 5 && faulty {
			self, _ := os.FindProcess(os.Getpid())
			switch fault {
			case "killed":
				_ = self.Kill()
			case "stopped":
				_ = self.Signal(syscall.SIGSTOP)
			case "stalled":
				time.Sleep(time.Hour)
			case "hangs on its device":
				g.Watch("the run", func() (bool, error) { return false, nil })
				<-g.Done()
				return g.Err()
			case "out of memory":
				return errors.New("no memory")
			case "exits":
				os.Exit(5)
			case "panics":
				panic("a fault of the program")
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// texts returns what the ranks have ended with, by rank.
func texts(t *testing.T, dir string, n int) map[int]string {
	t.Helper()
	list := map[int]string{}
	for i := range n {
		if b, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(i))); err == nil {
			list[i] = string(b)
		}
	}
	return list
}

// TestLaunchFaults: a rank that fails ends all ranks in time, each with an error that names it.
func TestLaunchFaults(t *testing.T) {
	for fault, c := range map[string]struct{ others, launch string }{
		"killed":              {"rank 1 has ended", "rank 1: signal: killed"},
		"stopped":             {"rank 1 has been silent for 1.5s", "rank "},
		"stalled":             {"rank 1 did not come to step within", "rank "},
		"hangs on its device": {"rank 1", "rank "},
		"out of memory":       {"rank 1: no memory", "rank 1: exit status 3: no memory"},
		"exits":               {"rank 1 has ended", "rank 1: exit status 5"},
		"panics":              {"rank 1 has", "rank 1: exit status 2"},
		"other model":         {`rank 1 has model "n", rank 0 has "m"`, "rank "},
		"never comes":         {"ranks [1] have not come within 3s", "rank "},
		"exits early":         {"ranks [1] have not come within 3s", "rank 1: exit status 3: no device"},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			dir, start := t.TempDir(), time.Now()
			err := dist.Launch(context.Background(), 3, dist.Command{Grace: 4 * time.Second, Stderr: io.Discard,
				Env: []string{"DIST_TEST=rank", "DIST_TEST_DIR=" + dir, "DIST_TEST_FAULT=" + fault}})
			require.ErrorContains(t, err, c.launch)
			got := texts(t, dir, 3)
			for _, rank := range []int{0, 2} {
				require.Contains(t, got[rank], c.others, "rank %d", rank)
			}
			require.Less(t, time.Since(start), 20*time.Second)
		})
	}
}

// running waits until all ranks are in their steps, and returns their process ids.
func running(t *testing.T, dir string, n int) (ids []int) {
	t.Helper()
	for i := range n {
		require.Eventually(t, func() bool {
			b, err := os.ReadFile(filepath.Join(dir, "running"+strconv.Itoa(i)))
			id, bad := strconv.Atoi(string(b))
			if err == nil && bad == nil {
				ids = append(ids, id)
			}
			return err == nil && bad == nil
		}, 20*time.Second, 10*time.Millisecond)
	}
	return ids
}

// TestLaunchInterrupted: the end of the context stops all ranks after the same step, without an error of theirs.
func TestLaunchInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		err := dist.Launch(ctx, 3, dist.Command{Env: []string{"DIST_TEST=rank", "DIST_TEST_DIR=" + dir}})
		require.ErrorContains(t, err, "Ctrl-C")
	})
	running(t, dir, 3)
	cancel(errors.New("Ctrl-C"))
	ended.Wait()
	require.Equal(t, map[int]string{0: "<nil>", 1: "<nil>", 2: "<nil>"}, texts(t, dir, 3))
}

// TestLaunchKilled: the ranks end when the process that has started them is killed.
func TestLaunchKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "DIST_TEST=parent", "DIST_TEST_DIR="+dir)
	require.NoError(t, parent.Start())
	ids := running(t, dir, 3)
	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	require.Eventually(t, func() bool { return len(texts(t, dir, 3)) == 3 }, 10*time.Second, 10*time.Millisecond)
	for rank, text := range texts(t, dir, 3) {
		require.Contains(t, text, "the process that started the ranks has ended", "rank %d", rank)
	}
	for _, id := range ids {
		require.Eventually(t, func() bool { return syscall.Kill(id, 0) != nil }, 10*time.Second, 10*time.Millisecond)
	}
}

// TestLaunchOutput: rank 0 writes as if it were alone, the others behind their rank.
func TestLaunchOutput(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	sh := dist.Command{Path: "/bin/sh", Args: []string{"-c", "echo out $RANK; echo err $RANK >&2"}, Stdout: &out, Stderr: &errs}
	require.NoError(t, dist.Launch(context.Background(), 2, sh))
	require.Equal(t, "out 0\n", out.String())
	lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
	require.ElementsMatch(t, []string{"err 0", "rank 1: out 1", "rank 1: err 1"}, lines)
	require.ErrorContains(t, dist.Launch(context.Background(), 2, dist.Command{Path: "/nowhere"}), "rank 0")
	require.ErrorContains(t, dist.Launch(context.Background(), 0, sh), "at least 1")
}
