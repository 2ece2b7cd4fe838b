package dist_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// together calls f for each rank, each in a goroutine of its own, and returns their errors.
func together(groups []*dist.Group, f func(*dist.Group) error) []error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() { errs[i] = f(g) })
	}
	wg.Wait()
	return errs
}

// quick are short timeouts.
var quick = dist.Options{FirstTimeout: 500 * time.Millisecond, Silence: 4 * time.Second}

func overTCP(t *testing.T, n int, o dist.Options) []*dist.Group {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		o.Size, o.Addr, o.Secret = n, l.Addr().String(), []byte("secret")
		require.NoError(t, l.Close())
		groups, errs := make([]*dist.Group, n), make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				mine := o
				mine.Rank = i
				groups[i], errs[i] = dist.Join(context.Background(), mine)
			})
		}
		wg.Wait()
		if errors.Is(errs[0], syscall.EADDRINUSE) { // another test has got the port
			continue
		}
		require.NoError(t, errors.Join(errs...))
		return groups
	}
}

// eachForm runs a test with groups among goroutines and over TCP.
func eachForm(t *testing.T, n int, o dist.Options, f func(t *testing.T, groups []*dist.Group)) {
	for name, groups := range map[string]func() []*dist.Group{
		"goroutines": func() []*dist.Group { return dist.Goroutines(n, o) },
		"tcp":        func() []*dist.Group { return overTCP(t, n, o) },
	} {
		t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
			t.Parallel()
			all := groups()
			f(t, all)
			together(all, (*dist.Group).Close)
		})
	}
}

func TestAllGather(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8} {
		eachForm(t, n, dist.Options{}, func(t *testing.T, groups []*dist.Group) {
			require.NoError(t, errors.Join(together(groups, func(g *dist.Group) error {
				for call := range 20 {
					own := make([]byte, call*g.Rank()*1000)
					for i := range own {
						own[i] = byte(i + g.Rank())
					}
					all, err := g.AllGather("numbers", own)
					if err != nil {
						return err
					}
					clear(own) // no rank sees it
					for rank, theirs := range all {
						for i, b := range theirs {
							if b != byte(i+rank) || len(theirs) != call*rank*1000 {
								return fmt.Errorf("rank %d, %d bytes, at %d: %d", rank, len(theirs), i, b)
							}
						}
						clear(theirs)
					}
				}
				return errors.Join(graph.Agree(g, map[string]string{"x": "1"}), g.Close())
			})...))
			for _, g := range groups {
				require.NoError(t, g.Err())
				require.ErrorContains(t, testutil.Err(g.AllGather("late", nil)), "closed")
			}
		})
	}
}

// TestFaults: whatever one rank does, all ranks end in time with an error that names it.
func TestFaults(t *testing.T) {
	stuck := func() (bool, error) { return false, nil }
	ended := func() (bool, error) { return true, nil }
	for name, c := range map[string]struct {
		others, one func(*dist.Group) error // what rank 1 does, and the others
		want        string
	}{
		"fails": {gather("sums"), func(g *dist.Group) error { g.Fail(errors.New("no memory")); return g.Err() },
			"rank 1: no memory"},
		"does not come":       {gather("sums"), wait, "rank 1 did not come to sums within 500ms"},
		"comes to another op": {gather("sums"), gather("products"), "rank 1 came to products, rank 0 to sums"},
		"leaves":              {gather("sums"), (*dist.Group).Close, "rank 1 has left the job"},
		"others leave":        {(*dist.Group).Close, gather("sums"), "has left the job"},
		"does not leave":      {(*dist.Group).Close, wait, "has not left the job within"},
		"hangs on its device": {wait, func(g *dist.Group) error { g.Watch("run 7", stuck); return wait(g) },
			"rank 1: run 7 has not ended within 500ms"},
		"fails on its device": {wait, func(g *dist.Group) error {
			g.Watch("run 6", ended)
			g.Watch("run 7", func() (bool, error) { return false, errors.New("illegal address") })
			return wait(g)
		}, "rank 1: run 7: illegal address"},
		"differs": {func(g *dist.Group) error {
			if err := graph.Agree(g, map[string]string{"model": "a", "same": "s"}); err != nil {
				g.Fail(err)
			}
			return g.Err()
		}, func(g *dist.Group) error { return graph.Agree(g, map[string]string{"model": "b", "same": "s"}) },
			`rank 1 has model "b", rank 0 has "a"`},
	} {
		for n := 2; n <= 3; n++ {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				eachForm(t, n, quick, func(t *testing.T, groups []*dist.Group) {
					start := time.Now()
					for rank, err := range together(groups, func(g *dist.Group) error {
						if g.Rank() == 1 {
							return c.one(g)
						}
						return c.others(g)
					}) {
						if name == "leaves" && rank == 1 || name == "others leave" || name == "does not leave" {
							continue // an orderly end, or one that another rank's call has an error for
						}
						require.ErrorContains(t, err, c.want, "rank %d", rank)
					}
					found := false
					for _, g := range groups {
						found = found || g.Err() != nil && strings.Contains(g.Err().Error(), c.want)
					}
					require.True(t, found)
					require.Less(t, time.Since(start), 6*time.Second)
				})
			})
		}
	}
}

// wait waits for the failure of another rank.
func wait(g *dist.Group) error {
	select {
	case <-g.Done():
		return g.Err()
	case <-time.After(10 * time.Second):
		return errors.New("nothing has failed")
	}
}

func gather(what string) func(*dist.Group) error {
	return func(g *dist.Group) error { return testutil.Err(g.AllGather(what, []byte{1})) }
}

// TestDeadlines: an operation may take longer before the first step than after it, and a slow mean allows more.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	o := dist.Options{FirstTimeout: 3 * time.Second, Timeout: 300 * time.Millisecond}
	groups := dist.Goroutines(2, o)
	errs := together(groups, func(g *dist.Group) error {
		if g.Rank() == 1 {
			time.Sleep(time.Second)
		}
		if err := gather("first")(g); err != nil {
			return fmt.Errorf("before the first step: %w", err)
		}
		for range 3 {
			ended := make(chan struct{})
			g.Watch("step", func() (bool, error) { close(ended); return true, nil })
			<-ended
			time.Sleep(100 * time.Millisecond)
		}
		if g.Rank() == 1 {
			return wait(g)
		}
		return gather("second")(g)
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "rank 1 did not come to second within")
	}
	together(groups, (*dist.Group).Close)
}

// TestJoinRefuses: a process that is not one of the job does not get in.
func TestJoinRefuses(t *testing.T) {
	t.Parallel()
	o := dist.Options{Size: 2, Secret: []byte("secret"), FirstTimeout: time.Second}
	join := func(change func(rank int, o *dist.Options), strange func(addr string)) []error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr := l.Addr().String()
		require.NoError(t, l.Close())
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				mine := o
				mine.Rank, mine.Addr = i, addr
				change(i, &mine)
				var g *dist.Group
				if g, errs[i] = dist.Join(context.Background(), mine); errs[i] == nil {
					errs[i] = g.Close()
				}
			})
		}
		strange(addr)
		wg.Wait()
		return errs
	}
	quiet := func(string) {}
	for name, c := range map[string]struct {
		change func(rank int, o *dist.Options)
		want   [2]string
	}{
		"secret": {func(rank int, o *dist.Options) { o.Secret = []byte{byte(rank)} },
			[2]string{"ranks [1] have not come within 1s; a process with another secret has", "another secret"}},
		"size": {func(rank int, o *dist.Options) { o.Size += rank },
			[2]string{"rank 1 is of 3 ranks, rank 0 of 2", "rank 1 is of 3 ranks, rank 0 of 2"}},
		"no rank 0": {func(rank int, o *dist.Options) { o.Rank = 1 },
			[2]string{"rank 0 does not answer", "rank 0 does not answer"}},
		"no secret": {func(rank int, o *dist.Options) { o.Secret = nil }, [2]string{"NSA_DDP_SECRET", "NSA_DDP_SECRET"}},
		"address":   {func(rank int, o *dist.Options) { o.Addr = "nowhere" }, [2]string{"address of rank 0", "address of rank 0"}},
		"foreign address": {func(rank int, o *dist.Options) { o.Addr = "192.0.2.1:9" },
			[2]string{"MASTER_ADDR", "rank 0 does not answer"}},
		"rank": {func(rank int, o *dist.Options) { o.Rank += 2 }, [2]string{"rank 2 of 2", "rank 3 of 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for rank, err := range join(c.change, quiet) {
				require.ErrorContains(t, err, c.want[rank])
			}
		})
	}
	t.Run("strangers", func(t *testing.T) {
		require.NoError(t, errors.Join(join(func(rank int, _ *dist.Options) { time.Sleep(time.Duration(rank) * 300 * time.Millisecond) },
			func(addr string) {
				for i := range 100 {
					if c, err := net.Dial("tcp", addr); err == nil {
						_, _ = c.Write(make([]byte, 10*i))
						if i%2 == 0 {
							_ = c.Close()
						} else {
							t.Cleanup(func() { _ = c.Close() })
						}
					}
				}
			})...))
	})
	t.Run("port in use", func(t *testing.T) {
		l := testutil.Closing(net.Listen("tcp", "127.0.0.1:0"))(t)
		mine := o
		mine.Addr = l.Addr().String()
		require.ErrorContains(t, testutil.Err(dist.Join(context.Background(), mine)), "address already in use")
	})
}

func TestFromEnv(t *testing.T) {
	for _, c := range []struct {
		env      string
		launched bool
		want     dist.Options
		err      string
	}{
		{"", false, dist.Options{}, ""},
		{"SLURM_NTASKS=4 SLURM_PROCID=1", false, dist.Options{}, ""}, // a job that is not of ranks
		{"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=7 NSA_DDP_SECRET=s NSA_DDP_TIMEOUT=3s", true,
			dist.Options{Rank: 1, Size: 4, LocalRank: 1, Addr: "a:7", Secret: []byte("s"), Timeout: 3 * time.Second}, ""},
		{"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=::1 MASTER_PORT=7 TORCHELASTIC_RUN_ID=job TORCHELASTIC_USE_AGENT_STORE=True",
			true, dist.Options{Size: 2, Addr: "[::1]:8", Secret: []byte("job")}, ""},
		{"SLURM_NTASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_JOB_ID=9 MASTER_ADDR=a MASTER_PORT=7", true,
			dist.Options{Rank: 3, Size: 4, LocalRank: 1, Addr: "a:7", Secret: []byte("9")}, ""},
		{"WORLD_SIZE=1 RANK=0", true, dist.Options{Size: 1}, ""},
		{"WORLD_SIZE=x RANK=0", true, dist.Options{}, `WORLD_SIZE is "x"`},
		{"WORLD_SIZE=2 RANK=2 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=7 NSA_DDP_SECRET=s", true, dist.Options{}, "rank 2 of 2"},
		{"WORLD_SIZE=2 RANK=1 MASTER_PORT=7 NSA_DDP_SECRET=s", true, dist.Options{}, "LOCAL_RANK is not set\ndist: MASTER_ADDR is not set"},
		{"WORLD_SIZE=2 RANK=1 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=7", true, dist.Options{}, "no secret"},
		{"WORLD_SIZE=1 RANK=0 NSA_DDP_TIMEOUT=0", true, dist.Options{}, "NSA_DDP_TIMEOUT"},
		{"WORLD_SIZE=1 RANK=0 NSA_DDP_PARENT=x", true, dist.Options{}, "NSA_DDP_PARENT"},
	} {
		t.Run(c.env, func(t *testing.T) {
			for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_NTASKS",
				"SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID", "NSA_DDP_SECRET", "TORCHELASTIC_RUN_ID"} {
				t.Setenv(name, "")
			}
			for _, set := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(set, "=")
				t.Setenv(name, value)
			}
			o, launched, err := dist.FromEnv()
			require.Equal(t, c.launched, launched)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			if len(o.Secret) == 0 {
				o.Secret = nil
			}
			require.Equal(t, c.want, o)
		})
	}
}
