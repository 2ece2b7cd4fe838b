package testutil

import "strings"

// Listener is a writer that keeps what is written, and calls Heard before each write that holds Phrase; an empty phrase
// is in every write.
type Listener struct {
	Phrase string
	Heard  func()
	text   strings.Builder // not embedded: io.WriteString would call its WriteString
}

func (l *Listener) Write(p []byte) (int, error) {
	if strings.Contains(string(p), l.Phrase) {
		l.Heard()
	}
	return l.text.Write(p)
}

// String returns what has been written.
func (l *Listener) String() string { return l.text.String() }
