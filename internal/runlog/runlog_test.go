package runlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// begin is the time at which the runs of the tests begin.
var begin = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// step returns step i of a run with one step a second.
func step(i int) Step {
	x := float64(i)
	return Step{
		Number: i, Time: begin.Add(time.Duration(i) * time.Second), Tokens: int64(i) * 2048,
		Loss: 2 + 3.5*math.Exp(-x/300) + 0.1*math.Sin(x), LR: 1e-3, GradNorm: 0.5 + 0.1*math.Cos(x), TokensPerSec: 2e4,
	}
}

// create makes a record in a new folder.
func create(t testing.TB, o Options) *Log {
	t.Helper()
	return testutil.Must(Create(filepath.Join(t.TempDir(), "runs", "a"), o))(t)
}

// read returns the lines of a file of the run folder.
func read(t testing.TB, l *Log, name string) []string {
	t.Helper()
	text := testutil.Must(os.ReadFile(l.path(name)))(t)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func readEvents(t testing.TB, l *Log, kind string) []map[string]any {
	t.Helper()
	var events []map[string]any
	for _, line := range read(t, l, EventsFile) {
		var e map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		if e["kind"] == kind {
			events = append(events, e)
		}
	}
	return events
}

func TestTable(t *testing.T) {
	l := create(t, Options{Title: "a run", BytesPerToken: 2})
	require.NoError(t, l.HeldOut(0, 5.5))
	for i := 1; i <= 2000; i++ {
		l.Step(step(i))
		if i%200 == 0 {
			require.NoError(t, l.HeldOut(i, 2.1+3.5*math.Exp(-float64(i)/300)))
		}
	}
	require.NoError(t, l.Save())
	require.NoError(t, errors.Join(l.Save(), l.Draw()), "again, over what is there")
	lines := read(t, l, StepsFile)
	require.Len(t, lines, 2002)
	require.Equal(t, columns, lines[0])
	require.Regexp(t, `^0,.{24},,,,,,5\.5,3\.967\d*,244\.69\d*$`, lines[1])
	require.Regexp(t, `^1,2026-11-23T12:00:01\.000Z,2048,5\.57\d*,0\.001,0\.554\d*,20000,,,$`, lines[2])
	require.Regexp(t, `^200,.*,3\.8969\d*,2\.811\d*,49\.25\d*$`, lines[201])
}

// TestTableIsItsOwnInverse: a table that is read and written again has the same text, for any numbers.
func TestTableIsItsOwnInverse(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	odd := []float64{0, 1, -1, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, math.SmallestNonzeroFloat64, 1e-3}
	number := func() float64 {
		if random.IntN(4) == 0 {
			return odd[random.IntN(len(odd))]
		}
		return random.NormFloat64()
	}
	var rows []row
	for i := range 1000 {
		r := row{Step: Step{Number: 3 * i, Time: begin.Add(time.Duration(random.Int64N(1e15))), Tokens: random.Int64()},
			heldOut: number()}
		if r.onlyHeldOut = random.IntN(9) == 0 && r.heldOut != 0; !r.onlyHeldOut {
			r.Loss, r.LR, r.GradNorm, r.TokensPerSec = number(), number(), number(), number()
		}
		rows = append(rows, r)
	}
	for _, bytesPerToken := range []float64{0, 1, 3.7} {
		text := table(rows, Options{BytesPerToken: bytesPerToken})
		again := testutil.Must(parseTable(text))(t)
		require.Len(t, again, len(rows))
		want := strings.Split(string(text), "\n")
		for i, line := range strings.Split(string(table(again, Options{BytesPerToken: bytesPerToken})), "\n") {
			require.Equal(t, want[i], line)
		}
	}
}

func TestParseTableRefuses(t *testing.T) {
	for text, message := range map[string]string{
		"step,loss\n1,2\n":            "columns step,loss, want step,time",
		columns + "\n1,2\n":           "wrong number of fields",
		columns + "\nx,,,,,,,,,\n":    `line 2: strconv.Atoi: parsing "x"`,
		columns + "\n1,now,,,,,,,,\n": `line 2: parsing time "now"`,
		columns + "\n2,2026-11-23T12:00:01.000Z,,,,,,1,,\n2,2026-11-23T12:00:01.000Z,,,,,,1,,\n": "line 3: step 2 after step 2",
		columns + "\n2,2026-11-23T12:00:01.000Z,1,1,1,1,\"\n":                                    "line 2",
		columns + "\n2,2026-11-23T12:00:01.000Z,1,1,1,?,1,,,\n":                                  `line 2: strconv.ParseFloat: parsing "?"`,
	} {
		require.ErrorContains(t, testutil.Err(parseTable([]byte(text))), message)
	}
}

func TestEvents(t *testing.T) {
	l := create(t, Options{BytesPerToken: 1})
	require.NoError(t, l.Event("start", map[string]any{"command": `train "x"`, "cores": 2}))
	for i := 1; i <= 35; i++ {
		l.Step(step(i))
	}
	require.NoError(t, l.HeldOut(35, math.Ln2))
	l.Scalars(35, map[string]float64{"gate/selected": 0.25, "gate/window": math.NaN()})
	require.NoError(t, l.Event("warning", map[string]any{
		"nan": math.NaN(), "inf": math.Inf(-1), "error": fs.ErrNotExist, "nested": map[string]any{"loss": math.NaN()},
	}))
	require.ErrorContains(t, l.Event("wrong", map[string]any{"f": func() {}}), `runlog: event "wrong": `)
	require.Empty(t, readEvents(t, l, "wrong"))
	require.Regexp(t,
		`^\{"time":"20..-..-..T..:..:..\....Z","step":0,"kind":"start","command":"train \\"x\\"","cores":2\}$`,
		read(t, l, EventsFile)[0])

	steps := readEvents(t, l, "step")
	require.Len(t, steps, 4, "one in ten seconds")
	for i, e := range steps {
		last, sum := 10*i+1, 0.0
		first := max(1, last-9)
		for j := first; j <= last; j++ {
			sum += step(j).Loss
		}
		require.InDelta(t, sum/float64(last-first+1), e["mean_loss"], 1e-12)
		delete(e, "mean_loss")
		s := step(last)
		require.Equal(t, map[string]any{
			"time": s.Time.Format(timeFormat), "step": float64(last), "kind": "step", "loss": s.Loss, "lr": s.LR,
			"grad_norm": s.GradNorm,
			"tokens":    float64(s.Tokens), "tokens_per_second": s.TokensPerSec,
		}, e)
	}
	for kind, want := range map[string]map[string]any{
		"evaluation": {"loss": math.Ln2, "bits_per_byte": 1.0, "perplexity": 2.0},
		"scalars":    {"values": map[string]any{"gate/selected": 0.25, "gate/window": "NaN"}},
		"warning":    {"nan": "NaN", "inf": "-Inf", "error": fs.ErrNotExist.Error(), "nested": map[string]any{"loss": "NaN"}},
	} {
		e := readEvents(t, l, kind)
		require.Len(t, e, 1)
		require.Equal(t, 35.0, e[0]["step"])
		want["time"], want["step"], want["kind"] = e[0]["time"], 35.0, kind
		require.Equal(t, want, e[0])
	}
}

// TestCreateIsExclusive: if many runs begin at once in one folder, exactly one succeeds.
func TestCreateIsExclusive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs", "a")
	errs := make([]error, 20)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { _, errs[i] = Create(dir, Options{}) })
	}
	group.Wait()
	winners := 0
	for _, err := range errs {
		if err == nil {
			winners++
			continue
		}
		require.ErrorIs(t, err, fs.ErrExist)
		require.ErrorContains(t, err, dir)
	}
	require.Equal(t, 1, winners)
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	slash := testutil.Must(Create(filepath.Join(dir, "slash")+"/", Options{}))(t)
	require.Equal(t, filepath.Join(dir, "slash", StepsFile), slash.path(StepsFile))
	require.ErrorIs(t, testutil.Err(Create(file, Options{})), fs.ErrExist)
	require.ErrorContains(t, testutil.Err(Create(filepath.Join(file, "run"), Options{})), "not a directory")
	require.ErrorContains(t, testutil.Err(Resume(file, 0, Options{})), "not a directory")
	require.ErrorIs(t, testutil.Err(Resume(filepath.Join(dir, "none"), 0, Options{})), fs.ErrNotExist)
}

// TestDamagedTable: a resumed run has the rows before the damage, and the damaged file is kept. Rows that are missing
// at the end, as in a missing table, are an error once.
func TestDamagedTable(t *testing.T) {
	l := create(t, Options{})
	for i := 1; i <= 9; i++ {
		l.Step(step(i))
	}
	require.NoError(t, l.Save())
	path := l.path(StepsFile)
	whole := string(testutil.Must(os.ReadFile(path))(t))
	lines, damaged := strings.SplitAfter(whole, "\n"), 0
	for text, c := range map[string]struct {
		rows int
		want string
	}{
		whole: {9, ""},
		strings.Join(lines[:6], "") + "6,cut": {5,
			"wrong number of fields: 5 rows before that are kept, and the file as steps.csv.damaged"},
		strings.Join(lines[:3], "") + lines[2]: {2, "line 4: step 2 after step 2"},
		"mine":                                 {0, "columns mine, want"},
		strings.ReplaceAll(whole, "\n7,", "\nx,"): {6, "x"},
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		again := testutil.Must(Resume(l.dir, 9, Options{}))(t)
		require.Len(t, again.rows, c.rows)
		if c.want == "" {
			require.NoError(t, again.Damaged())
			continue
		}
		require.ErrorContains(t, again.Damaged(), path)
		require.ErrorContains(t, again.Damaged(), c.want)
		damaged++
		kept := path + ".damaged"
		if damaged > 1 { // the earlier ones stay
			kept = fmt.Sprintf("%s-%d", kept, damaged)
		}
		require.Equal(t, text, string(testutil.Must(os.ReadFile(kept))(t)))
		require.ErrorContains(t, again.Damaged(), "kept, and the file as "+filepath.Base(kept))
	}
	for text, last := range map[string]int{"missing": 0, "": 0, lines[0]: 0, strings.Join(lines[:6], ""): 5} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		if text == "missing" {
			require.NoError(t, os.Remove(path))
		}
		cut := testutil.Must(Resume(l.dir, 9, Options{}))(t)
		require.ErrorContains(t, cut.Damaged(),
			fmt.Sprintf("%s: its last row is of step %d, want 9: the rows between are lost", path, last))
		require.Len(t, cut.rows, last)
		cut.Step(step(10))
		require.NoError(t, cut.Save())
		require.NoError(t, testutil.Must(Resume(l.dir, 10, Options{}))(t).Damaged())
	}
	require.NoError(t, os.Remove(path))
	require.NoError(t, testutil.Must(Resume(l.dir, 0, Options{}))(t).Damaged(), "no step, no row")
}

// TestResume: a run that is killed after a Save and resumed from an earlier step has the table of a run that was not
// killed.
func TestResume(t *testing.T) {
	whole := create(t, Options{BytesPerToken: 2})
	killed := create(t, Options{BytesPerToken: 2})
	take := func(l *Log, from, to int) {
		for i := from; i <= to; i++ {
			l.Step(step(i))
			if i%10 == 0 {
				l.rows[len(l.rows)-1].heldOut = step(i).Loss + 1
			}
		}
	}
	take(whole, 1, 100)
	require.NoError(t, whole.Save())
	take(killed, 1, 73)
	require.NoError(t, killed.Save())
	require.NoError(t, killed.Event("later", nil))
	require.NoError(t, os.WriteFile(killed.path(".tmp-loss.png123"), nil, 0o600))
	require.NoError(t, os.WriteFile(killed.path(".tmp-other123"), nil, 0o600))

	for _, from := range []int{60, 10, 100, 0} {
		l := testutil.Must(Resume(killed.dir, from, Options{BytesPerToken: 2}))(t)
		require.Len(t, l.rows, from)
		take(l, from+1, 100)
		require.NoError(t, l.Save())
		want := read(t, whole, StepsFile)
		for i, line := range read(t, l, StepsFile) {
			require.Equal(t, want[i], line)
		}
	}
	resumes := readEvents(t, killed, "resume")
	require.Len(t, resumes, 4)
	require.Equal(t, []any{60.0, 13.0, 0.0}, []any{resumes[0]["step"], resumes[0]["rows_dropped"],
		resumes[0]["rows_missing"]})
	require.Len(t, readEvents(t, killed, "later"), 1)
	require.NoFileExists(t, killed.path(".tmp-loss.png123"))
	require.FileExists(t, killed.path(".tmp-other123"))

	gap := testutil.Must(Resume(killed.dir, 120, Options{}))(t)
	require.Equal(t, 20.0, readEvents(t, gap, "resume")[4]["rows_missing"])
	require.NoError(t, os.Remove(gap.path(StepsFile)))
	testutil.Must(Resume(killed.dir, 0, Options{}))(t)
}

// TestResumeRepairsLines cuts the file of events at every byte. The whole lines stay, and the next line is whole.
func TestResumeRepairsLines(t *testing.T) {
	l := create(t, Options{})
	for _, kind := range []string{"a", "b", "ünïcode"} {
		require.NoError(t, l.Event(kind, map[string]any{"text": "x\ny"}))
	}
	text := testutil.Must(os.ReadFile(l.path(EventsFile)))(t)
	for cut := range len(text) + 1 {
		require.NoError(t, os.WriteFile(l.path(EventsFile), text[:cut], 0o644))
		require.NoError(t, repairLines(l.path(EventsFile)))
		require.NoError(t, l.Event("next", nil))
		whole := strings.Count(string(text[:cut]), "\n")
		if cut < len(text) && text[cut] == '\n' {
			whole++
		}
		kinds := []any{}
		for _, line := range read(t, l, EventsFile) {
			var e map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &e), "cut at %d: %s", cut, line)
			kinds = append(kinds, e["kind"])
		}
		require.Equal(t, append([]any{"a", "b", "ünïcode"}[:whole:whole], "next"), kinds)
	}
}

// TestRepairLargeFiles: of a large file only the end is read. A last line that no run writes is an error, and stays.
func TestRepairLargeFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), EventsFile)
	const size = 1 << 40 // zeros that take no room
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	if err := os.Truncate(path, size); err != nil {
		t.Skip(err)
	}
	require.ErrorContains(t, repairLines(path), path+": its last line has 1048576 bytes or more")
	f := &appendFile{path: path}
	for _, text := range []string{"\n{}\n", `{"torn`} {
		f.add([]byte(text))
		require.NoError(t, f.flush())
	}
	require.NoError(t, repairLines(path))
	require.EqualValues(t, size+len("\n{}\n"), testutil.Must(os.Stat(path))(t).Size())
}

// FuzzTable: what is read of a table, damaged or not, is the same when it is written and read again.
func FuzzTable(f *testing.F) {
	rows := realistic(20, 5)
	f.Add(table(rows, Options{BytesPerToken: 1}))
	f.Add(append(table(rows, Options{BytesPerToken: 0}), "21,cut"...))
	f.Add([]byte(columns + "\n-1,2026-11-23T12:00:01.000Z,1,NaN,-Inf,1e308,0x1p-1074,1e400,,\n"))
	f.Add([]byte(columns + "\r\n9223372036854775807,0001-01-01T00:00:00.000Z,,,,,,\"1e308\",,\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rows, _ := parseTable(text)
		written := table(rows, Options{BytesPerToken: 1})
		again, err := parseTable(written)
		require.NoError(t, err)
		require.Equal(t, string(written), string(table(again, Options{BytesPerToken: 1})))
	})
}
