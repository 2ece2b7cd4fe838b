package graph

import "fmt"

// Reason says what an implementation cannot take.
type Reason int

// The reasons for which a guard refuses.
const (
	ReasonShape      Reason = iota + 1 // sizes, such as a head dimension without a kernel
	ReasonType                         // element types
	ReasonCapability                   // the device lacks a feature
	ReasonAlignment                    // of an operand's memory
	ReasonStride                       // of an operand's memory
	ReasonLength                       // too short to be worth it, or too long
	ReasonPolicy                       // switched off by the Policy
	ReasonMissing                      // a library, or a kernel for the op, is not there
)

var reasons = [...]string{"", "shape", "type", "capability", "alignment", "stride", "length", "policy", "missing"}

// String returns the reason in a word.
func (r Reason) String() string {
	if r < 1 || int(r) >= len(reasons) {
		return fmt.Sprintf("reason %d", int(r))
	}
	return reasons[r]
}

// Unsupported is the error of a guard that refuses. It alone, found by errors.As, makes a machine try the next
// implementation.
type Unsupported struct {
	Reason Reason
	Detail string // what was got and what is wanted
}

// Refuse returns an *Unsupported with a formatted detail.
func Refuse(r Reason, format string, args ...any) error {
	return &Unsupported{r, fmt.Sprintf(format, args...)}
}

// Error returns the reason and the detail.
func (u *Unsupported) Error() string { return fmt.Sprintf("unsupported %v: %s", u.Reason, u.Detail) }
