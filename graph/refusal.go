package graph

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Reason says why an implementation refuses a call.
type Reason int

// The reasons for which a guard refuses.
const (
	ReasonDevice     Reason = iota + 1 // the device lacks what the kernel needs, such as half precision
	ReasonCapability                   // the compute capability
	ReasonType                         // element types
	// sizes or parameters that do not fit each other, or for which the kernel is not made
	ReasonShape
	ReasonHeadDim   // head dimensions without a kernel
	ReasonSize      // a size of zero, or one beyond what the kernel or a grid can count
	ReasonStride    // the distance between rows
	ReasonAlignment // of an operand's memory
	ReasonShared    // a thread block would need more shared memory than the device allows
	ReasonDocuments // documents packed into rows (cu_seqlens)
	ReasonLength    // too few keys for the kernel to be faster
	ReasonPolicy    // switched off by the Policy
	ReasonMissing   // a library, or a kernel for the op, is not there
)

var reasons = [...]string{
	ReasonDevice: "device", ReasonCapability: "capability", ReasonType: "type", ReasonShape: "shape",
	ReasonHeadDim: "head dim",
	ReasonSize:    "size", ReasonStride: "stride", ReasonAlignment: "alignment", ReasonShared: "shared memory",
	ReasonDocuments: "documents", ReasonLength: "length", ReasonPolicy: "policy", ReasonMissing: "missing",
}

// String returns the reason in one to two words.
func (r Reason) String() string {
	if r < 1 || int(r) >= len(reasons) {
		return fmt.Sprintf("reason %d", int(r))
	}
	return reasons[r]
}

// Unsupported is the error of a guard that refuses. A machine finds it by errors.As and tries the next implementation;
// it does so for no other error.
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

// Refusal is an implementation that was refused, and why.
type Refusal struct {
	Name string
	Why  *Unsupported
}

// String returns the implementation and the reason.
func (r Refusal) String() string { return fmt.Sprintf("%s: %v", r.Name, r.Why) }

// fallback reports whether the implementation that runs instead is second best on this device. It is not if the refused
// one is for another compute capability, is switched off by the user, or is slower at the call's length.
func (r Refusal) fallback() bool {
	return r.Why.Reason != ReasonCapability && r.Why.Reason != ReasonPolicy && r.Why.Reason != ReasonLength
}

func joinRefusals(refused []Refusal) string {
	var list []string
	for _, r := range refused {
		list = append(list, r.String())
	}
	return strings.Join(list, "; ")
}

// firstAccepted returns the first implementation that try accepts, nil if there is none, and the refusals of those
// before it. It returns an error of try that is not *Unsupported.
func firstAccepted(offers []Implementation, try func(Implementation) error) (impl Implementation, refused []Refusal,
	err error) {
	for _, i := range offers {
		err := try(i)
		u := (*Unsupported)(nil)
		switch {
		case err == nil:
			return i, refused, nil
		case !errors.As(err, &u):
			return nil, nil, fmt.Errorf("%s: %w", i.Name(), err)
		}
		refused = append(refused, Refusal{i.Name(), u})
	}
	return nil, refused, nil
}

// firstGuarded returns the first implementation of b whose guard accepts the call, as firstAccepted does.
func firstGuarded(b Backend, call Call) (impl Implementation, refused []Refusal, err error) {
	return firstAccepted(b.Offers(call), func(i Implementation) error { return i.Guard(call) })
}

// bindFirst binds the first implementation of b that accepts the call. The kernel is nil if there is none.
func bindFirst(b Backend, call Call, in, out []spec.Arg) (k Kernel, impl Implementation, refused []Refusal, err error) {
	impl, refused, err = firstAccepted(b.Offers(call), func(i Implementation) (err error) {
		if err = i.Guard(call); err == nil {
			k, err = i.Bind(call, in, out)
		}
		return err
	})
	if impl == nil {
		k = nil
	}
	return k, impl, refused, err
}
