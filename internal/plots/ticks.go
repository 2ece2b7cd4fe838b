package plots

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// PowersOfTwo returns a tick for each power of two in [low, high].
func PowersOfTwo(low, high float64) (ticks []plot.Tick) {
	for v := 1.0; v <= high && !math.IsInf(v, 1); v *= 2 {
		if v >= low {
			ticks = append(ticks, plot.Tick{Value: v, Label: strconv.Itoa(int(v))})
		}
	}
	return ticks
}

// Ticks makes the ticks of a linear axis: three to eight, fewer if they are whole.
type Ticks struct {
	Whole bool // no fractions
}

// Ticks implements plot.Ticker. Their distance is 1, 2 or 5 times a power of ten.
func (t Ticks) Ticks(low, high float64) (out []plot.Tick) {
	room := (high - low) / 7
	if !(room > 0) || math.IsInf(room, 1) {
		return nil
	}
	exponent := int(math.Floor(math.Log10(room)))
	if t.Whole {
		exponent = max(0, exponent)
	}
	at := func(i int, m float64) float64 { // exact, as 3 x 0.1 is not
		if exponent < 0 {
			return float64(i) * m / math.Pow10(-exponent)
		}
		return float64(i) * m * math.Pow10(exponent)
	}
	var m float64
	for _, m = range []float64{1, 2, 5, 10} {
		if at(1, m) >= room {
			break
		}
	}
	first, last := int(math.Ceil(low/at(1, m))), int(math.Floor(high/at(1, m)))
	for k := range min(last-first+1, 8) {
		v := at(first+k, m)
		out = append(out, plot.Tick{Value: v, Label: short(v)})
	}
	return out
}

func short(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if a := math.Abs(v); a >= unit.size && a < 1e12 {
			return strconv.FormatFloat(v/unit.size, 'g', 12, 64) + unit.name
		}
	}
	return strconv.FormatFloat(v, 'g', 12, 64)
}

// LogTicks makes the ticks of a logarithmic axis. 1, 2 and 5 of each decade have labels; with three decades or more,
// only 1 has one. An axis shorter than a decade has the ticks of a linear axis.
type LogTicks struct{}

func (LogTicks) Ticks(low, high float64) []plot.Tick {
	if !(low > 0 && high > low) || math.IsInf(high, 1) {
		return nil
	}
	decades := math.Log10(high / low)
	if decades < 1 {
		return Ticks{}.Ticks(low, high)
	}
	every := max(1, int(math.Ceil(decades/8)))
	var out []plot.Tick
	for e := int(math.Floor(math.Log10(low))); e <= int(math.Ceil(math.Log10(high))); e++ {
		for m := 1.0; m < 10; m++ {
			tick := plot.Tick{Value: m * math.Pow10(e)}
			if m == 1 && e%every == 0 || decades < 3 && (m == 2 || m == 5) {
				tick.Label = short(tick.Value)
			}
			if (decades < 8 || tick.Label != "") && tick.Value >= low && tick.Value <= high {
				out = append(out, tick)
			}
		}
	}
	return out
}
