package recall

import "slices"

// Answer is the answer of a model to a question.
type Answer struct {
	Distance int  // from the question back to the pair, in tokens
	Right    bool // the right value has the highest logit
	Selected bool // NSA has selected the block of the pair
}

// Accuracy returns the share of right answers.
func Accuracy(answers []Answer) float64 {
	return share(answers, func(a Answer) bool { return a.Right })
}

// SelectionRate returns the share of answers whose block was selected.
func SelectionRate(answers []Answer) float64 {
	return share(answers, func(a Answer) bool { return a.Selected })
}

func share(answers []Answer, is func(Answer) bool) float64 {
	n := 0
	for _, a := range answers {
		if is(a) {
			n++
		}
	}
	return float64(n) / float64(max(1, len(answers)))
}

// Bin has the answers of a range of distances.
type Bin struct {
	From, To int // tokens, From <= distance < To
	Answers  []Answer
}

// byDistance puts answers into bins of equal width between the least and the largest distance of t.
func (t Task) byDistance(answers []Answer, bins int) []Bin {
	list, width := make([]Bin, bins), t.Farthest()+1-t.Gap
	for i := range list {
		list[i].From, list[i].To = t.Gap+i*width/bins, t.Gap+(i+1)*width/bins
	}
	for _, a := range answers {
		i, _ := slices.BinarySearchFunc(list, a.Distance, func(b Bin, distance int) int { return b.To - distance - 1 })
		list[i].Answers = append(list[i].Answers, a)
	}
	return list
}
