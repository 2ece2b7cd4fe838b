package optim

// The bounds of a LossScale, and how many good steps let it grow.
const (
	firstLossScale = 1 << 16
	leastLossScale = 1
	mostLossScale  = 1 << 24
	goodSteps      = 1000
)

// LossScale keeps the gradients of fp16 within its range (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2): a step
// whose gradients overflow changes no weight and halves the scale, and a thousand good steps double it.
type LossScale struct {
	value float64 // of the next step
	good  int     // steps since the last change
}

// NewLossScale returns a scale of 2^16. It stays between 1 and 2^24.
func NewLossScale() *LossScale { return &LossScale{value: firstLossScale} }

// Value returns the scale of the next step.
func (l *LossScale) Value() float64 { return l.value }

// Adjust takes note of the norm of the gradients of a step with the given scale, which may be the one before the last. It
// reports whether they have overflowed where a smaller scale may help: the step has changed nothing, see AdamW.TakeBack.
func (l *LossScale) Adjust(norm, scale float64) (skipped bool) {
	if notFinite(norm) {
		if scale <= leastLossScale {
			return false
		}
		if scale <= l.value { // no step before this one has made it smaller already
			l.value, l.good = max(leastLossScale, scale/2), 0
		}
		return true
	}
	if l.good++; l.good == goodSteps {
		l.value, l.good = min(mostLossScale, 2*l.value), 0
	}
	return false
}
