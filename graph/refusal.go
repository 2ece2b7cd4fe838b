package graph

import "fmt"

// Reason says what an implementation cannot take.
type Reason int

// The reasons for which a guard refuses.
const (
	ReasonDevice     Reason = iota + 1 // the device lacks what the kernel is made of, such as half precision
	ReasonCapability                   // the compute capability
	ReasonType                         // element types
	ReasonShape                        // sizes or parameters that do not fit each other, or that the kernel is not made for
	ReasonHeadDim                      // head dimensions without a kernel
	ReasonSize                         // a size of zero, or one beyond what the kernel or a grid can count
	ReasonStride                       // the distance of rows
	ReasonAlignment                    // of an operand's memory
	ReasonShared                       // a block would need more shared memory than the device has for one
	ReasonSequences                    // packed sequences (cu_seqlens)
	ReasonLength                       // too few keys to be worth it
	ReasonPolicy                       // switched off by the Policy
	ReasonMissing                      // a library, or a kernel for the op, is not there
)

var reasons = [...]string{
	ReasonDevice: "device", ReasonCapability: "capability", ReasonType: "type", ReasonShape: "shape", ReasonHeadDim: "head dim",
	ReasonSize: "size", ReasonStride: "stride", ReasonAlignment: "alignment", ReasonShared: "shared memory",
	ReasonSequences: "packed sequences", ReasonLength: "length", ReasonPolicy: "policy", ReasonMissing: "missing",
}

// String returns the reason in a word or two.
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

// Refusal is an implementation that was not taken.
type Refusal struct {
	Name string
	Why  *Unsupported
}

// String returns the implementation and the reason.
func (r Refusal) String() string { return fmt.Sprintf("%s: %v", r.Name, r.Why) }

// fallback reports whether what runs instead is second best on this device. It is not if the refused implementation is for another
// compute capability, is switched off by the user, or is slower at the site's length.
func (r Refusal) fallback() bool {
	return r.Why.Reason != ReasonCapability && r.Why.Reason != ReasonPolicy && r.Why.Reason != ReasonLength
}
