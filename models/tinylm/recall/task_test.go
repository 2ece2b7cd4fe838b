package recall

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func tasks(t *testing.T) []Task {
	return []Task{
		testutil.Must(NewTask(512, 16))(t), testutil.Must(NewTask(1024, 32))(t), testutil.Must(NewTask(2048, 64))(t),
		testutil.Must(NewTask(16384, 64))(t),
		{Context: 100, Pairs: 8, Values: 4, Questions: 11, Skip: 8, Gap: 17},
	}
}

// read finds the pairs, questions and answers of a document only by the order of the vocabulary: first the pairs (key,
// value), then the questions of the keys, then the values.
type read struct {
	at    map[int]int // position of each key's pair
	value map[int]int
	asked map[int]int // key asked at a position
}

func readDocument(t *testing.T, task Task, d document) read {
	r := read{map[int]int{}, map[int]int{}, map[int]int{}}
	pairs, least, most := task.Pairs*task.Values, task.Vocab()-1, 0
	for i, token := range d.tokens {
		switch id := int(token); {
		case id < pairs:
			key, value := id/task.Values, id%task.Values
			require.NotContains(t, r.at, key, "a key has two pairs")
			r.at[key], r.value[key] = i, value
		case id < pairs+task.Pairs:
			r.asked[i] = id - pairs
		default:
			least, most = min(least, id), max(most, id)
		}
	}
	require.GreaterOrEqual(t, least, pairs+task.Pairs+task.Values, "answers are targets alone")
	require.Less(t, most, task.Vocab())
	return r
}

// TestDocuments reads documents back: questions are at the end, and their targets are the values of the pairs. In a
// block that has all values each appears once. So a model that knows the block of a key, but not its pair, can only
// guess.
func TestDocuments(t *testing.T) {
	for _, task := range tasks(t) {
		t.Run(fmt.Sprint(task), func(t *testing.T) {
			require.Equal(t, 1/float64(task.Values), task.Chance())
			r, d := rand.New(rand.NewPCG(1, 2)), task.newDocument()
			for _, distinct := range []int{task.Values, task.Values / 2, 1} {
				for range 20 {
					task.fill(r, d, distinct)
					got := readDocument(t, task, d)
					others := 0
					require.Len(t, got.asked, task.Questions)
					require.Len(t, got.at, task.Pairs)
					values := map[int]map[int]int{} // by block and value: how often
					for key, place := range got.at {
						require.GreaterOrEqual(t, place, task.Skip)
						if values[place/task.Values] == nil {
							values[place/task.Values] = map[int]int{}
						}
						values[place/task.Values][got.value[key]]++
					}
					require.Len(t, values, task.Pairs/task.Values)
					for _, counts := range values {
						require.Len(t, counts, distinct)
						for _, n := range counts {
							require.Equal(t, task.Values/distinct, n)
						}
					}
					for i, target := range d.targets {
						key, asked := got.asked[i]
						if !asked {
							others += int(target + 1) // -1 is ignored
							continue
						}
						require.GreaterOrEqual(t, i, task.Context-task.Questions)
						require.EqualValues(t, task.Pairs*(task.Values+1)+got.value[key], target)
						require.Equal(t, i-got.at[key], d.distances[i-task.Context+task.Questions])
						require.GreaterOrEqual(t, i-got.at[key], task.Gap)
					}
					require.Zero(t, others, "a target that is no answer")
				}
			}
		})
	}
}

// TestAnswersAreOutOfSight checks a Task against its models: neither the window nor a forced block has an answer.
func TestAnswersAreOutOfSight(t *testing.T) {
	for _, task := range tasks(t)[:4] {
		c := task.Model(NSA)
		require.NoError(t, c.Validate())
		require.Equal(t, c.SelectBlock, task.Values)
		r, d := rand.New(rand.NewPCG(5, 6)), task.newDocument()
		for range 50 {
			task.fill(r, d, task.Values)
			for i, distance := range d.distances {
				question := task.Context - task.Questions + i
				answer := question - distance
				require.GreaterOrEqual(t, distance, c.Window, "within the window")
				block, newest := answer/c.SelectBlock, question/c.SelectBlock
				require.Positive(t, block, "in the first block")
				require.Less(t, block, newest-1, "in one of the two newest blocks")
			}
		}
	}
}

func TestEveryDistanceIsAsked(t *testing.T) {
	task := testutil.Must(NewTask(1024, 32))(t)
	r, d := rand.New(rand.NewPCG(7, 8)), task.newDocument()
	var answers []Answer
	for range 400 {
		task.fill(r, d, task.Values)
		for _, distance := range d.distances {
			answers = append(answers, Answer{Distance: distance, Right: distance%2 == 0})
		}
	}
	total := 0
	for i, b := range task.byDistance(answers, 12) {
		if i == 0 {
			require.Equal(t, task.Gap, b.From)
		}
		require.Greater(t, len(b.Answers), 200, "%d to %d", b.From, b.To)
		for _, a := range b.Answers {
			require.True(t, b.From <= a.Distance && a.Distance < b.To)
		}
		total += len(b.Answers)
	}
	require.Equal(t, len(answers), total)
	require.Equal(t, task.Context-1-task.Skip, task.Farthest())
}

func TestSameSeedSameDocuments(t *testing.T) {
	task := testutil.Must(NewTask(1024, 32))(t)
	draw := func(seed uint64) document {
		d := task.newDocument()
		task.fill(rand.New(rand.NewPCG(seed, 0)), d, 4)
		return d
	}
	require.Equal(t, draw(1), draw(1))
	require.NotEqual(t, draw(1).tokens, draw(2).tokens)
}

func TestTaskRefuses(t *testing.T) {
	for message, change := range map[string]func(*Task){
		"context is 0":      func(t *Task) { t.Context = 0 },
		"33 pairs":          func(t *Task) { t.Pairs = 33 },
		"skip of 5 tokens":  func(t *Task) { t.Skip = 5 },
		"questions is 0":    func(t *Task) { t.Questions = 0 },
		"gap is 0":          func(t *Task) { t.Gap = 0 },
		"free is 0":         func(t *Task) { t.Free = 0 },
		"room for 1 blocks": func(t *Task) { t.Gap = 920 },
		"1114144 tokens":    func(t *Task) { t.Pairs = 1 << 16 },
	} {
		task := testutil.Must(NewTask(1024, 32))(t)
		change(&task)
		require.ErrorContains(t, task.Validate(), message)
	}
	_, err := NewTask(64, 32)
	require.ErrorContains(t, err, "room for 0 blocks")
}
