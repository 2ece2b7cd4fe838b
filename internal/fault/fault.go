// Package fault has the errors that callers ask what they are: which package an error is of, and which fields of a
// configuration are wrong.
package fault

import (
	"errors"
	"fmt"
	"strings"
)

// named is an error with the name of a package before its text.
type named struct {
	pkg, text string
	err       error
}

func (n *named) Error() string { return n.pkg + ": " + n.text }
func (n *named) Unwrap() error { return n.err }

// In adds the name of a package and, if what is not empty, what has failed to an error that is not nil. An error that
// begins with this name keeps its text. The name that In has given to the error in another package is left out: one
// package is named, not the chain of them.
func In(pkg, what string, err error) error {
	if err == nil {
		return nil
	}
	if text, ok := strings.CutPrefix(err.Error(), pkg+": "); ok {
		return &named{pkg, text, err}
	}
	text := Text(err)
	if what != "" {
		text = what + ": " + text
	}
	return &named{pkg, text, err}
}

// Text returns the text of an error without the name of a package that In has given it.
func Text(err error) string {
	text := err.Error()
	if n := (*named)(nil); errors.As(err, &n) {
		text = strings.Replace(text, n.Error(), n.text, 1)
	}
	return text
}

// Name is In for the result of a function. Call it with defer.
func Name(err *error, pkg, what string) { *err = In(pkg, what, *err) }

// Field is an error about fields of a configuration. A program says it of the flag of one of them.
type Field struct {
	Names   []string // the Go names of the fields
	Label   string   // the field in plain English; "" if there are several, and Problem says which
	Problem string
	Err     error // nil, or the error that is this Problem
}

func (f *Field) Error() string { return strings.TrimPrefix(f.Label+" "+f.Problem, " ") }
func (f *Field) Unwrap() error { return f.Err }

// Of returns the error of one field: "window w is 0, want at least 1".
func Of(name, label, format string, args ...any) error {
	return &Field{Names: []string{name}, Label: label, Problem: fmt.Sprintf(format, args...)}
}

// Between returns the error of fields that do not fit each other: "heads 12 not a multiple of kv heads 5". Names are
// separated by spaces; of those that a person has not chosen, the first is to be changed.
func Between(names, format string, args ...any) error {
	return &Field{Names: strings.Fields(names), Problem: fmt.Sprintf(format, args...)}
}

// About says that err comes from the values of fields, unless it is nil or says already of which it comes.
func About(names string, err error) error {
	if err == nil || errors.As(err, new(*Field)) {
		return err
	}
	return &Field{Names: strings.Fields(names), Problem: Text(err), Err: err}
}
