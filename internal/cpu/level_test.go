package cpu

import (
	"strings"
	"testing"
)

func TestChooseLevel(t *testing.T) {
	for _, c := range []struct {
		wish    string
		highest level
		want    level
		err     string
	}{
		{"", avx512, avx512, ""},
		{"", generic, generic, ""},
		{"generic", avx512, generic, ""},
		{"avx2", avx512, avx2, ""},
		{"avx512", avx512, avx512, ""},
		{"avx512", avx2, avx2, "this processor has avx2 at most"},
		{"avx2", generic, generic, "this processor has generic at most"},
		{"sse", avx2, avx2, "want generic, avx2 or avx512"},
	} {
		got, err := choose(c.wish, c.highest)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("NSA_CPU=%q on %v: got %v and error %v, want %v and %q", c.wish, c.highest, got, err, c.want, c.err)
		}
	}
	if Level() != active.String() || active > highest() {
		t.Errorf("level %s on a processor with %v", Level(), highest())
	}
}
