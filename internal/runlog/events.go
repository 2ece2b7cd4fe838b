package runlog

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// timeFormat is the format of times in the files, in UTC.
const timeFormat = "2006-01-02T15:04:05.000Z"

// jsonLine returns an event as a line of JSON: time, step, kind, and the fields sorted by name.
func jsonLine(kind string, step int, at time.Time, fields map[string]any) ([]byte, error) {
	b := fmt.Appendf(nil, `{"time":"%s","step":%d,"kind":`, at.UTC().Format(timeFormat), step)
	name, err := json.Marshal(kind)
	if err != nil {
		return nil, err
	}
	b = append(b, name...)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if key == "time" || key == "step" || key == "kind" {
			return nil, fmt.Errorf("a field is named %s, which every event has", key)
		}
		pair, err := json.Marshal(map[string]any{key: plain(fields[key])})
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", key, err)
		}
		b = append(append(b, ','), pair[1:len(pair)-1]...)
	}
	return append(b, '}', '\n'), nil
}

// plain returns v with strings in place of values that JSON does not have: NaN, Inf and errors.
func plain(v any) any {
	switch v := v.(type) {
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return strconv.FormatFloat(v, 'g', -1, 64)
		}
	case float32:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return plain(f)
		}
	case error:
		return v.Error()
	case []any:
		return plainSlice(v)
	case []float64:
		return plainSlice(v)
	case []float32:
		return plainSlice(v)
	case map[string]any:
		return plainMap(v)
	case map[string]float64:
		return plainMap(v)
	}
	return v
}

func plainSlice[T any](s []T) []any {
	out := make([]any, len(s))
	for i, v := range s {
		out[i] = plain(v)
	}
	return out
}

func plainMap[T any](m map[string]T) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = plain(v)
	}
	return out
}
