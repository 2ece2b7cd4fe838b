package train

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// rankDevice returns the devices of so many ranks: processors, or the GPUs that NSA_TEST_RANKS names.
func rankDevice(n int) string {
	gpus := strings.Split(os.Getenv("NSA_TEST_RANKS"), ",")
	if gpus[0] == "" {
		return fmt.Sprint("cpu:", n)
	}
	return "cuda:" + strings.Join(gpus[:min(n, len(gpus))], ",")
}

// runRanks trains on several ranks, in processes of their own, and returns what they say.
func runRanks(t testing.TB, env []string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := start(t, &out, env, args...).Wait()
	return out.String(), err
}

// trainedOn trains on several ranks in a new folder, which it returns.
func trainedOn(t testing.TB, device string, args ...string) string {
	t.Helper()
	run := newFolder(t)
	out, err := runRanks(t, nil, append(slices.Clip(args), "-device", device, "-out", run)...)
	require.NoError(t, err, out)
	return run
}

// lossesOf returns the losses and the norms of the gradients of all steps of a run, and its held-out losses.
func lossesOf(t testing.TB, run string) (list []float64) {
	t.Helper()
	rows := testutil.Must(csv.NewReader(strings.NewReader(read(t, run, runlog.StepsFile))).ReadAll())(t)
	for i, name := range rows[0] {
		switch name {
		case "loss", "grad_norm", "held_out":
			for _, row := range rows[1:] {
				if row[i] != "" {
					list = append(list, testutil.Must(strconv.ParseFloat(row[i], 64))(t))
				}
			}
		}
	}
	require.Greater(t, len(list), len(rows))
	return append(list, heldOutOf(t, run))
}

// TestRanks: a run on any number of ranks, which share the batches of a step or cut them, takes the steps of a run on
// one, up to rounding, and with -shard those of the same ranks without it.
func TestRanks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ranks int
		more  []string
	}{
		{2, []string{"-accumulate", "2"}}, {2, []string{"-batch", "4", "-accumulate", "1", "-optimizer", "adamw"}},
		{3, []string{"-accumulate", "6", "-packed"}}, {8, []string{"-batch", "2", "-accumulate", "4"}},
	} {
		t.Run(fmt.Sprint(c.ranks, c.more), func(t *testing.T) {
			t.Parallel()
			if os.Getenv("NSA_TEST_RANKS") != "" && c.ranks != 2 {
				t.Skip("as many ranks as GPUs")
			}
			steps := 50
			if c.ranks != 2 {
				steps = testutil.Tries(t, 12, 50)
			}
			args := tinyArgs(t, append([]string{"-steps", strconv.Itoa(steps), "-eval-every", "10", "-eval-tokens", "300"},
				c.more...)...)
			one := lossesOf(t, trainedOn(t, strings.Split(rankDevice(1), ",")[0], args...))
			run := trainedOn(t, rankDevice(c.ranks), args...)
			require.InEpsilonSlice(t, one, lossesOf(t, run), 1e-5)
			require.Equal(t, c.ranks, descriptionOf(t, run).Processes[0].Ranks)
			if c.ranks == 2 { // more may add in another order
				require.Equal(t, modelOf(t, run), modelOf(t, trainedOn(t, rankDevice(2), append(args, "-shard")...)))
			}
		})
	}
}

// TestContextParallel: a run whose sequences lie over ranks takes the steps of one rank, up to rounding, alone and with
// several parts of the batch. It is stopped and resumed on as many ranks to the same bits, and on others.
func TestContextParallel(t *testing.T) {
	t.Parallel()
	args := tinyArgs(t, "-steps", "12", "-batch", "2", "-accumulate", "2", "-save-minutes", "0", "-eval-tokens", "300",
		"-eval-every", "9")
	over := func(ranks, context int, more ...string) []string {
		return append([]string{"-device", rankDevice(ranks), "-context-parallel", strconv.Itoa(context)}, more...)
	}
	train := func(on []string) string {
		run := newFolder(t)
		said, err := runRanks(t, nil, slices.Concat(args, on, []string{"-out", run})...)
		require.NoError(t, err, said)
		return run
	}
	one, two := train(over(1, 1)), train(over(2, 2))
	require.InEpsilonSlice(t, lossesOf(t, one), lossesOf(t, two), 1e-5)
	if os.Getenv("NSA_TEST_RANKS") == "" {
		require.InEpsilonSlice(t, lossesOf(t, one), lossesOf(t, train(over(4, 2, "-shard", "-recompute"))), 1e-5)
	}
	run := newFolder(t)
	var cmd *exec.Cmd
	started := make(chan struct{})
	out := &testutil.Listener{Phrase: middle,
		Heard: sync.OnceFunc(func() { <-started; _ = cmd.Process.Signal(syscall.SIGINT) })}
	cmd = start(t, out, []string{childHook + "=wait"}, slices.Concat(args, over(2, 2), []string{"-out", run})...)
	close(started)
	require.Error(t, cmd.Wait(), "%s", out)
	require.Equal(t, 1, wholeCheckpoint(t, run).state.Step, "%s", out)
	for _, on := range [][]string{over(2, 2), over(2, 1)} {
		again := copyOf(t, run)
		said, err := runRanks(t, nil, append(on, "-resume", again)...)
		require.NoError(t, err, said)
		if slices.Equal(on, over(2, 2)) {
			require.Equal(t, modelOf(t, two), modelOf(t, again))
		}
		require.InEpsilonSlice(t, lossesOf(t, two), lossesOf(t, again), 1e-5)
	}
	_, _, err := parse(t, append(args, "-context-parallel", "2")...).cut(3)
	require.ErrorContains(t, err, "-context-parallel 2 on 3 ranks: want a number that divides them")
	for want, more := range map[string]string{"want a multiple of 4 tokens": "-context=34", "are not packed": "-packed",
		"-context-parallel 2 on 1 ranks": "-device=cpu"} {
		require.ErrorContains(t, refusal(append(args, "-context-parallel", "2", more)...), want)
	}
}

// inGather is the end of the names of faults in the middle of a gather.
const inGather = " in gather"

// gatherFault is a group whose rank has a fault when it comes to its tenth gather, for which the other ranks wait.
type gatherFault struct {
	graph.Group
	fault func()
	calls int
}

func (g *gatherFault) AllGather(what string, data []byte) ([][]byte, error) {
	if what == "gather-sequence" {
		if g.calls++; g.calls == 10 {
			g.fault()
		}
	}
	return g.Group.AllGather(what, data)
}

// TestRanksResume: a signal stops all ranks after the same step, with a checkpoint. On as many ranks the run ends with
// the bits of one that was not stopped, on one or three with its losses up to rounding.
func TestRanksResume(t *testing.T) {
	t.Parallel()
	args := tinyArgs(t, "-steps", "12", "-batch", "3", "-accumulate", "2", "-save-minutes", "0", "-shard",
		"-eval-every", "9")
	whole, run := trainedOn(t, rankDevice(2), args...), newFolder(t)
	var cmd *exec.Cmd
	started := make(chan struct{})
	out := &testutil.Listener{Phrase: middle,
		Heard: sync.OnceFunc(func() { <-started; _ = cmd.Process.Signal(syscall.SIGINT) })}
	cmd = start(t, out, []string{childHook + "=wait"}, append(args, "-device", rankDevice(2), "-out", run)...)
	close(started)
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit, "%s", out)
	require.Equal(t, 130, exit.ExitCode(), "%s", out)
	require.Equal(t, 1, wholeCheckpoint(t, run).state.Step, "%s", out)
	for _, device := range []string{rankDevice(2), "cpu:1", "cpu:3"} {
		again := copyOf(t, run)
		said, err := runRanks(t, nil, "-resume", again, "-device", device)
		require.NoError(t, err, said)
		if device == rankDevice(2) {
			require.Equal(t, modelOf(t, whole), modelOf(t, again))
		}
		require.InEpsilonSlice(t, lossesOf(t, whole), lossesOf(t, again), 1e-5)
	}
	said, err := runRanks(t, nil, "-resume", run, "-device", "cpu:4")
	require.Error(t, err)
	require.Contains(t, said, "want a step that 4 ranks can share")
}

func init() { rankFault = haveFault }

// haveFault makes something go wrong on this rank: now, or after step 2. Faults by name:
//
//	exits, never comes           before it joins
//	batch, data                  it has other options or data
//	memory                       too little memory is left on it
//	killed, stopped, hangs       in the middle of a step
//	killed, hangs in gather      in the middle of a gather of the attention
func haveFault(name string, o *Options) error {
	self, _ := os.FindProcess(os.Getpid())
	now := map[string]func(){
		"never comes": func() { time.Sleep(time.Hour) },
		"batch":       func() { o.Batch = 2 },
		"seed":        func() { o.Seed++ },
		"data":        func() { o.Data = filepath.Join(o.Data, "07.txt") },
		"memory":      takeMemory,
	}
	later := map[string]func(){
		"killed":  func() { _ = self.Kill() },
		"stopped": func() { _ = self.Signal(syscall.SIGSTOP) },
		"hangs":   func() { time.Sleep(time.Hour) },
	}
	if name == "exits" {
		return errors.New("no device")
	}
	if f := now[name]; f != nil {
		f()
	}
	if name, inGather := strings.CutSuffix(name, inGather); inGather {
		o.hooks.group = func(g graph.Group) graph.Group { return &gatherFault{Group: g, fault: later[name]} }
	} else if f := later[name]; f != nil {
		o.hooks.stepped = func(step int) {
			if step == 2 {
				f()
			}
		}
	}
	return nil
}

// takeMemory leaves little memory to this process: on its GPU, if it has one, else in its address space.
func takeMemory() {
	if os.Getenv("NSA_TEST_RANKS") != "" {
		b, err := cuda.Select("cuda:" + strings.Split(os.Getenv("NSA_TEST_RANKS"), ",")[1])
		if err != nil {
			panic(err)
		}
		for bytes := int(b.Device().Memory); bytes > 1<<20; bytes /= 2 {
			for err == nil {
				_, err = b.Alloc(bytes)
			}
			err = nil
		}
		return
	}
	pages, err := os.ReadFile("/proc/self/statm")
	n, _ := strconv.Atoi(strings.Fields(string(pages))[0])
	limit := uint64(n*os.Getpagesize() + 160<<20) // less than a run plans, and more than Go needs to say so
	if err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit})); err != nil {
		panic(err)
	}
}

// TestRankFaults: whatever happens to a rank, all ranks end within 30 s with an error that says what, and the run can
// be resumed. In the full form each fault happens at several places; NSA_TEST_RANKS=0,1 has them on GPUs.
func TestRankFaults(t *testing.T) {
	t.Parallel()
	quick := []string{"NSA_DDP_TIMEOUT=2s", "NSA_DDP_FIRST_TIMEOUT=3s"}
	if os.Getenv("NSA_TEST_RANKS") != "" {
		quick = []string{"NSA_DDP_TIMEOUT=5s", "NSA_DDP_FIRST_TIMEOUT=10s"} // NCCL connects
	}
	args := tinyArgs(t, "-steps", "500", "-accumulate", "2", "-save-minutes", "1e-6", "-eval-every", "1000", "-device",
		rankDevice(2))
	faults := map[string]string{
		"exits": "no device", "never comes": "rank 1", "batch": `rank 1 has -batch "2", rank 0 has "1"`,
		"seed": `rank 1 has -seed "2", rank 0 has "1"`, "data": "rank 1 has data",
		"killed": "rank 1", "stopped": "rank 1 did not come to", "hangs": "rank 1 did not come to",
		"killed" + inGather: "rank 1", "hangs" + inGather: "rank 1 did not come to gather-sequence",
	}
	if os.Getenv("NSA_TEST_RANKS") != "" { // there NCCL gathers, not the group
		delete(faults, "killed"+inGather)
		delete(faults, "hangs"+inGather)
	}
	if !testutil.Full(t) { // one of each kind
		for _, like := range []string{"exits", "seed", "stopped"} {
			delete(faults, like)
		}
	}
	for range testutil.Tries(t, 1, 7) {
		var all sync.WaitGroup
		type end struct {
			run, said, resumed string
			err, resumeErr     error
			took               time.Duration
		}
		ends := map[string]*end{}
		for fault := range faults {
			e, began, args := &end{run: newFolder(t)}, time.Now(), args
			if strings.HasSuffix(fault, inGather) {
				args = append(slices.Clip(args), "-context-parallel", "2")
			}
			ends[fault] = e
			all.Go(func() { // most of them wait
				e.said, e.err = runRanks(t, append(slices.Clip(quick), childFault+"="+fault),
					append(slices.Clip(args), "-out", e.run)...)
				e.took = time.Since(began)
				if exists(e.run) {
					e.resumed, e.resumeErr = runRanks(t, nil, "-resume", e.run, "-steps", "5")
				}
			})
		}
		all.Wait()
		for fault, e := range ends {
			require.Error(t, e.err, "%s: %s", fault, e.said)
			require.Contains(t, e.said, faults[fault], fault)
			require.Less(t, e.took, 30*time.Second, "%s: %s", fault, e.said)
			require.NoError(t, e.resumeErr, "%s: %s", fault, e.resumed)
		}
	}
}

// TestRankWithoutMemory: a rank without memory, whose plan or Go's runtime says so, ends all. It has the GPUs to itself.
func TestRankWithoutMemory(t *testing.T) {
	run := newFolder(t)
	args := tinyArgs(t, "-accumulate", "2", "-device", rankDevice(2), "-out", run)
	said, err := runRanks(t, []string{childFault + "=memory"}, args...)
	require.Error(t, err, said)
	require.Regexp(t, "rank 1: .*(memory|needs)", said)
	require.Contains(t, said, "rank 0: exit status 1", "it has ended, too")
}

// TestRankKills kills one rank, or the process that started the ranks, at random moments after the first step, and
// resumes the run, until it ends: with the bits of a run that was not killed.
func TestRankKills(t *testing.T) {
	t.Parallel()
	args := tinyArgs(t, "-steps", "40", "-batch", "2", "-accumulate", "2", "-save-minutes", "1e-5", "-eval-every", "15",
		"-shard", "-device", rankDevice(2))
	whole, run := newFolder(t), newFolder(t)
	said, err := runRanks(t, nil, append(slices.Clip(args), "-out", whole)...)
	require.NoError(t, err, said)
	r := rand.New(rand.NewPCG(3, 4))
	for kills := testutil.Tries(t, 3, 60); ; kills-- {
		begin, env := append(slices.Clip(args), "-out", run), []string(nil)
		if exists(filepath.Join(run, optionsFile)) {
			begin = []string{"-resume", run}
		}
		if kills > 0 {
			who := []string{"0", "1", ""}[r.IntN(3)]
			env = []string{childHook + "=" + strconv.Itoa(r.IntN(40_000)), childKilled + "=" + who}
		}
		said, err := runRanks(t, env, begin...)
		if err == nil {
			break
		}
		require.Positive(t, kills, said)
	}
	require.Equal(t, modelOf(t, whole), modelOf(t, run))
	require.Equal(t, heldOutOf(t, whole), heldOutOf(t, run))
	requireWholeRecord(t, run, 40)
}

// TestParentOfRanksDies: the ranks end when the process that started them is killed, and the run can be resumed.
func TestParentOfRanksDies(t *testing.T) {
	t.Parallel()
	run := newFolder(t)
	args := tinyArgs(t, "-steps", "100000", "-accumulate", "2", "-device", rankDevice(2), "-out", run)
	var cmd *exec.Cmd
	started := make(chan struct{})
	out := &testutil.Listener{Phrase: middle, Heard: sync.OnceFunc(func() { <-started; _ = cmd.Process.Kill() })}
	cmd = start(t, out, []string{childHook + "=say"}, args...)
	close(started)
	require.Error(t, cmd.Wait()) // it waits for the end of the output, so for the ranks
	require.Contains(t, out.String(), "the process that started the ranks has ended")
	said, err := runRanks(t, nil, "-resume", run, "-steps", "3")
	require.NoError(t, err, said)
}

// TestRanksOfLauncher: under the variables of a launcher a process is a rank. A port that is in use, and a disk that is
// full on rank 0, are errors of all.
func TestRanksOfLauncher(t *testing.T) {
	t.Parallel()
	launch := func(port int, args ...string) (said []string, failed error) {
		var outs [2]bytes.Buffer
		var list []*exec.Cmd
		for rank := range 2 {
			list = append(list, start(t, &outs[rank], []string{fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank),
				"WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port), "NSA_DDP_SECRET=s",
				"NSA_DDP_FIRST_TIMEOUT=3s"}, append(args, "-device", rankDevice(2))...))
		}
		for rank, cmd := range list {
			failed = errors.Join(failed, cmd.Wait())
			said = append(said, outs[rank].String())
		}
		return said, failed
	}
	port := func(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
	l := testutil.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	args, run := tinyArgs(t, "-accumulate", "2"), newFolder(t)
	said, err := launch(port(l), append(args, "-out", run)...)
	require.Error(t, err)
	require.Contains(t, said[0], "address already in use")
	require.NoError(t, l.Close())
	said, err = launch(port(l), append(args, "-out", run)...)
	for err != nil && strings.Contains(said[0], "address already in use") { // another test has got it
		l = testutil.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		require.NoError(t, l.Close())
		said, err = launch(port(l), append(args, "-out", run)...)
	}
	require.NoError(t, err, said)
	require.NotContains(t, said[1], "step")
	require.Equal(t, 2, descriptionOf(t, run).Processes[0].Ranks)
}

// TestRanksOfTwoHosts: two ranks on hosts of their own, which here are two namespaces with a cable between them, train
// as on one host. When the cable is cut, both end.
func TestRanksOfTwoHosts(t *testing.T) {
	t.Parallel()
	if os.Getenv("NSA_TEST_RANKS") != "" {
		t.Skip("NCCL's connections are those of one host")
	}
	ip := func(command string) error { return exec.Command("ip", strings.Fields(command)...).Run() }
	hosts := []string{fmt.Sprint("nsa-a-", os.Getpid()), fmt.Sprint("nsa-b-", os.Getpid())}
	for _, h := range hosts {
		t.Cleanup(func() { _ = ip("netns del " + h) })
		if err := ip("netns add " + h); err != nil {
			t.Skip("no network namespaces: ip netns add: ", err)
		}
	}
	require.NoError(t, ip("link add nsa0 netns "+hosts[0]+" type veth peer name nsa1 netns "+hosts[1]))
	for i, h := range hosts {
		require.NoError(t, ip(fmt.Sprintf("-n %s addr add 10.9.0.%d/24 dev nsa%d", h, i+1, i)))
		require.NoError(t, ip(fmt.Sprintf("-n %s link set nsa%d up", h, i)))
		require.NoError(t, ip(fmt.Sprintf("-n %s link set lo up", h)))
	}
	self := testutil.Must(os.Executable())(t)
	train := func(heard func(), args ...string) (said [2]string, failed [2]error) {
		var all sync.WaitGroup
		for rank, host := range hosts {
			cmd := exec.Command("ip", "netns", "exec", host, self)
			out := &testutil.Listener{Phrase: middle, Heard: sync.OnceFunc(heard)}
			cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(append(args, "-device", "cpu"), "\n"), childHook+"=say",
				fmt.Sprint("RANK=", rank), "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=10.9.0.1", "MASTER_PORT=29500",
				"NSA_DDP_SECRET=s", "NSA_DDP_TIMEOUT=2s")
			cmd.Stdout, cmd.Stderr = out, out
			all.Go(func() { failed[rank] = cmd.Run(); said[rank] = out.String() })
		}
		all.Wait()
		return said, failed
	}
	args, run := tinyArgs(t, "-accumulate", "2", "-save-minutes", "1e-6"), newFolder(t)
	said, failed := train(func() {}, append(slices.Clip(args), "-out", run)...)
	require.NoError(t, errors.Join(failed[:]...), said)
	require.Equal(t, modelOf(t, newRun(t, args...)), modelOf(t, run))
	run = newFolder(t)
	cut := func() { _ = ip("-n " + hosts[0] + " link set nsa0 down") }
	said, failed = train(cut, append(slices.Clip(args), "-steps", "100000", "-out", run)...)
	require.Error(t, failed[0], said)
	require.Error(t, failed[1], said)
	require.Contains(t, said[0], "rank 1")
	testutil.Must(runArgs(t, "-resume", run, "-steps", "5"))(t)
}

// TestFullDiskOfRanks: the run of several ranks goes on to its end without room for a checkpoint and then waits for it,
// as that of one does; a signal ends the wait on all of them.
func TestFullDiskOfRanks(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256k"); err != nil {
		t.Skip("no file system of a given size: mount: ", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, 0)) })
	run := filepath.Join(disk, "run")
	var cmd *exec.Cmd
	started := make(chan struct{})
	out := &testutil.Listener{Phrase: "trying again every",
		Heard: sync.OnceFunc(func() { <-started; _ = cmd.Process.Signal(syscall.SIGTERM) })}
	cmd = start(t, out, nil, smallArgs(t, 3, "-accumulate", "2", "-dim", "64", "-device", rankDevice(2), "-out", run)...)
	close(started)
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit, "%s", out)
	require.Equal(t, 143, exit.ExitCode(), "%s", out)
	require.Contains(t, out.String(), "no space left on device")
	require.NoError(t, unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=16m"))
	said, err := runRanks(t, nil, "-resume", run)
	require.NoError(t, err, said)
}
