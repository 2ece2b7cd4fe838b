package nccl

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/nccl/fakenccl"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// open opens a fake library. At the end of the test it has not been misused.
func open(t *testing.T, fake *fakenccl.Library) *Library {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, fake.Misuse()) })
	return testutil.Must(OpenBy("", fake.Open))(t)
}

// options are those of a job that goes on.
func options() Options {
	return Options{Do: func(f func() error) error { return f() }, Err: func() error { return nil },
		Limit: 10 * time.Second, EndLimit: 10 * time.Second}
}

func join(t *testing.T, fake *fakenccl.Library, o Options) *Comm {
	t.Helper()
	return testutil.Must(open(t, fake).Join(new(ID), 0, 2, o))(t)
}

// sum is a collective call of c.
func sum(c *Comm) error {
	return c.Together(func() error { return c.AllReduce(0, 0, 1, Float32, Sum, 0) })
}

// TestCalls: each call has the arguments of nccl.h, also of a library that goes on with each while it is polled.
func TestCalls(t *testing.T) {
	for _, polls := range []int{0, 3} {
		fake := fakenccl.New()
		for _, f := range []string{"CommInitRankScalable", "GroupEnd", "CommFinalize"} {
			fake.Lasts[f] = polls
		}
		lib := open(t, fake)
		require.Equal(t, "2.28.9", lib.Version())
		c := testutil.Must(lib.Join(testutil.Must(lib.NewID())(t), 1, 4, options()))(t)
		require.NoError(t, c.Together(func() error {
			return errors.Join(c.AllReduce(10, 11, 5, Float32, Mean, 9), c.Reduce(10, 11, 5, BFloat16, Sum, 3, 9),
				c.Broadcast(10, 11, 5, Float64, 3, 9), c.AllGather(10, 11, 5, Float16, 9),
				c.ReduceScatter(10, 11, 5, Float32, Sum, 9))
		}))
		require.NoError(t, sum(c))
		require.NoError(t, errors.Join(c.AsyncError(), c.Close(), c.Close(), c.Abort(), c.AsyncError()))
		require.ErrorIs(t, sum(c), errAborted)
		require.Equal(t, []string{
			// size; magic, version, not blocking, three that are not set; no name of a net, not set
			"CommInitRankScalable [4 1 1] [1 2 3] 48 [3405692655 21700 0 2147483648 2147483648 2147483648] 0 -2147483648",
			"GroupStart []", "AllReduce [10 11 5 7 4 77 9]", "Reduce [10 11 5 9 0 3 77 9]", "Broadcast [10 11 5 8 3 77 9]",
			"AllGather [10 11 5 6 77 9]", "ReduceScatter [10 11 5 7 0 77 9]", "GroupEnd []",
			"GroupStart []", "AllReduce [0 0 1 7 0 77 0]", "GroupEnd []", "CommFinalize [77]", "CommDestroy [77]",
		}, fake.Calls()[1:])
	}
}

// TestEveryCallFails: the failure of each call is an error that names it.
func TestEveryCallFails(t *testing.T) {
	for f := range reflect.TypeFor[functions]().Fields() {
		if strings.HasPrefix(f.Name, "GetError") || strings.HasPrefix(f.Name, "GetLast") {
			continue
		}
		fake := fakenccl.New()
		fake.Fails = f.Name
		lib := open(t, fake)
		id, err := lib.NewID()
		c, joined := lib.Join(id, 0, 1, options())
		if err = errors.Join(err, joined); joined == nil {
			err = errors.Join(err, c.AsyncError(), c.Together(func() error {
				return errors.Join(c.AllReduce(0, 0, 1, Float32, Sum, 0), c.Reduce(0, 0, 1, Float32, Sum, 0, 0),
					c.Broadcast(0, 0, 1, Float32, 0, 0), c.AllGather(0, 0, 1, Float32, 0), c.ReduceScatter(0, 0, 1, Float32, Sum, 0))
			}))
			if f.Name == "CommAbort" {
				err = c.Abort()
			} else {
				err = errors.Join(err, c.Close())
			}
		}
		require.ErrorContains(t, err, "nccl"+f.Name+": went wrong (result 5): went wrong", f.Name)
	}
}

// TestAsyncError: what the communicator meets by itself is an error of AsyncError, and of the call that waits for it.
func TestAsyncError(t *testing.T) {
	fake := fakenccl.New()
	c := join(t, fake, options())
	require.NoError(t, c.AsyncError())
	fake.Set(func() { fake.State = 6 })
	require.ErrorContains(t, c.AsyncError(), "result 6")
	require.ErrorContains(t, sum(c), "result 6")
	require.ErrorContains(t, c.Close(), "the communicator is aborted: nccl: ncclCommGetAsyncError")
	require.Equal(t, 1, fake.Count("CommAbort"))
}

// TestGivesUp: a call that another rank does not come to ends when the job fails, when its limit passes, or by an abort
// from elsewhere. After the first two of Join and of Close the communicator is freed.
func TestGivesUp(t *testing.T) {
	for _, f := range []string{"CommInitRankScalable", "GroupEnd", "CommFinalize"} {
		for _, why := range []string{"failure", "limit", "abort"} {
			t.Run(f+"/"+why, func(t *testing.T) {
				fake, o := fakenccl.New(), options()
				fake.Lasts[f] = -1
				var failed atomic.Bool
				lost := errors.New("rank 1 is lost")
				o.Err = func() error {
					if failed.Load() {
						return lost
					}
					return nil
				}
				switch {
				case why == "limit":
					o.Limit, o.EndLimit = 20*time.Millisecond, 20*time.Millisecond
				case why == "failure":
					time.AfterFunc(20*time.Millisecond, func() { failed.Store(true) })
				case f == "CommInitRankScalable":
					return // nobody has the communicator yet
				}
				c, err := open(t, fake).Join(new(ID), 0, 2, o)
				if c != nil {
					if why == "abort" {
						time.AfterFunc(20*time.Millisecond, func() { _ = c.Abort() })
					}
					if f == "GroupEnd" {
						err = sum(c)
					} else {
						err = c.Close()
					}
				}
				switch why {
				case "limit":
					require.ErrorContains(t, err, "nccl"+f+" has not ended within 20ms")
				case "failure":
					require.ErrorIs(t, err, lost)
				default:
					require.ErrorIs(t, err, errAborted)
				}
				if f != "GroupEnd" || why == "abort" {
					require.Eventually(t, func() bool { return fake.Count("CommAbort") == 1 }, 10*time.Second, time.Millisecond)
				}
				if c != nil {
					require.NoError(t, c.Abort())
					require.Equal(t, 1, fake.Count("CommAbort"))
				}
			})
		}
	}
	o := options()
	o.Err = func() error { return errors.New("over") }
	fake := fakenccl.New()
	require.EqualError(t, testutil.Err(open(t, fake).Join(new(ID), 0, 2, o)), "over")
	require.Empty(t, fake.Calls())
}

// TestAbortEndsACall: a call of the library that waits for the device ends, and later ones do not begin.
func TestAbortEndsACall(t *testing.T) {
	fake := fakenccl.New()
	fake.Hangs = make(chan struct{})
	c := join(t, fake, options())
	ended := make(chan error, 1)
	go func() { ended <- sum(c) }()
	require.Eventually(t, func() bool { return fake.Count("GroupEnd") == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, errors.Join(c.AsyncError(), c.Abort()))
	<-ended
	require.ErrorIs(t, sum(c), errAborted)
	require.NoError(t, c.AsyncError())
}

// TestAbortThatDoesNotEnd: the caller goes on, with an error that says so, until the abort has ended.
func TestAbortThatDoesNotEnd(t *testing.T) {
	fake, o, held := fakenccl.New(), options(), make(chan struct{})
	fake.Holds, o.EndLimit = held, 10*time.Millisecond
	c := join(t, fake, o)
	require.ErrorIs(t, c.Abort(), ErrNotEnded)
	require.ErrorIs(t, c.Close(), ErrNotEnded)
	close(held)
	require.Eventually(t, func() bool { return c.Close() == nil }, 10*time.Second, time.Millisecond)
	require.Equal(t, 1, fake.Count("CommAbort"))
}

// TestOneCallAtATime: goroutines that call, look and abort meet in the library at no time.
func TestOneCallAtATime(t *testing.T) {
	for range 50 {
		fake := fakenccl.New()
		c := join(t, fake, options())
		var all sync.WaitGroup
		all.Go(func() {
			for sum(c) == nil {
			}
		})
		all.Go(func() {
			for range 20 {
				require.NoError(t, c.AsyncError())
			}
		})
		for range 2 {
			all.Go(func() {
				time.Sleep(time.Millisecond)
				require.NoError(t, c.Abort())
			})
		}
		all.Wait()
		require.Equal(t, 1, fake.Count("CommAbort"))
	}
}

// TestOpen: the folders are those of NSA_CUDA_LIBS and pip's beside them. An old library is none, and so is one that
// lacks a function.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	var tried []string
	none := func(name string) (sharedlib.Library, error) {
		tried = append(tried, name)
		for version, folder := range map[int32]string{21805: "old", 2708: "older", 22304: "broken"} {
			if filepath.Dir(name) == filepath.Join(dir, folder) {
				return &fakenccl.Library{Version: version, Lacks: "CommInitRankScalable"}, nil
			}
		}
		return nil, errors.New("not found")
	}
	folders := []string{"nvidia/cu13/lib", "old", "older", "broken"}
	for i, f := range folders {
		folders[i] = filepath.Join(dir, f)
	}
	_, err := OpenBy(strings.Join(folders, string(os.PathListSeparator)), none)
	require.ErrorAs(t, err, new(*Missing))
	require.ErrorContains(t, err, "old/"+fileName+": version 2.18.5, want 2.23 or later")
	require.ErrorContains(t, err, "older/"+fileName+": version 2.7.8, want 2.23 or later")
	require.ErrorContains(t, err, "broken/"+fileName+": the fake library has no ncclCommInitRankScalable")
	require.ErrorContains(t, err, "NSA_CUDA_LIBS may list folders")
	require.Contains(t, tried, filepath.Join(dir, "nvidia/nccl/lib", fileName))
	require.Equal(t, fileName, tried[len(tried)-1])
	failing := fakenccl.New()
	failing.Fails = "GetVersion"
	require.ErrorContains(t, testutil.Err(OpenBy("", failing.Open)), "ncclGetVersion: result 5")
}
