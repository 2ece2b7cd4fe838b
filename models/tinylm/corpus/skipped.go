package corpus

import (
	"slices"
	"strings"
	"sync"
)

// Skipped counts files or records that were left out for one reason.
type Skipped struct {
	Reason  string // as "binary"
	Files   int    // or records of files that hold many
	Example string // name of one of them
}

const (
	reasonExt     = "other extension"
	reasonRegular = "not a regular file"
	reasonEmpty   = "empty"
	reasonBinary  = "binary"
	reasonUTF8    = "not UTF-8"
	reasonNull    = "null"
)

// tally counts what is skipped. Units are read once an epoch and count once.
type tally struct {
	mutex   sync.Mutex
	entries map[string]*tallyEntry // by reason
}

type tallyEntry struct {
	files   int
	example string
	units   map[unit]int
}

// entry returns the entry of a reason. The mutex is held.
func (t *tally) entry(reason, example string) *tallyEntry {
	e := t.entries[reason]
	if e == nil {
		e = &tallyEntry{example: example, units: map[unit]int{}}
		if t.entries == nil {
			t.entries = map[string]*tallyEntry{}
		}
		t.entries[reason] = e
	}
	return e
}

// file counts a file that is not listed.
func (t *tally) file(reason, name string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.entry(reason, name).files++
}

// record notes that a unit of the file has skipped n records so far.
func (t *tally) record(reason, name string, u unit, n int) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	e := t.entry(reason, name)
	e.files += max(0, n-e.units[u])
	e.units[u] = max(n, e.units[u])
}

func (t *tally) list() []Skipped {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	var all []Skipped
	for reason, e := range t.entries {
		all = append(all, Skipped{reason, e.files, e.example})
	}
	slices.SortFunc(all, func(a, b Skipped) int { return strings.Compare(a.Reason, b.Reason) })
	return all
}
