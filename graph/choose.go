package graph

import (
	"errors"
	"fmt"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

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
