package inspect

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// palettes returns the colours of the page by name, in light and in dark mode.
func palettes(t *testing.T) map[string]map[string]string {
	modes := map[string]map[string]string{"light": {}, "dark": {}}
	blocks := regexp.MustCompile(`(?s):root\{(.*?)\}`).FindAllStringSubmatch(pageStyle, -1)
	require.Len(t, blocks, 2)
	for i, mode := range []string{"light", "dark"} {
		for _, c := range regexp.MustCompile(`--([\w-]+):(#[0-9a-f]+)`).FindAllStringSubmatch(blocks[i][1], -1) {
			modes[mode][c[1]] = c[2]
		}
	}
	return modes
}

// contrast returns the contrast of two colours by WCAG 2: 1 to 21.
func contrast(t *testing.T, a, b string) float64 {
	luminance := func(c string) float64 {
		if len(c) == 4 {
			c = string([]byte{'#', c[1], c[1], c[2], c[2], c[3], c[3]})
		}
		sum := 0.0
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
			x := float64(testutil.Must(strconv.ParseUint(c[1+2*i:3+2*i], 16, 8))(t)) / 255
			if x > 0.04045 {
				sum += weight * math.Pow((x+0.055)/1.055, 2.4)
			} else {
				sum += weight * x / 12.92
			}
		}
		return sum
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// TestContrast: in both modes each colour of text has a contrast of 4.5 to each background that it may lie on, and each
// colour that carries a meaning without words one of 3 to the page (WCAG 2, AA). The rules name no colours but those of
// the palettes, and nothing is translucent.
func TestContrast(t *testing.T) {
	require.InDelta(t, 21, contrast(t, "#000", "#ffffff"), 1e-9)
	require.InDelta(t, 4.54, contrast(t, "#767676", "#fff"), 0.01)
	text := map[string][]string{ // colour of text: backgrounds
		"ink": {"paper", "card", "free-low", "free-high", "forced-low", "forced-high", "loss-low", "loss-high"},
		"dim": {"paper", "card"}, "link": {"paper", "card"}, "card": {"ink"},
	}
	graphics := []string{"line", "link", "compressed", "selected", "window", "map-low", "map-high", "map-forced-low",
		"map-forced-high"}
	decoration := []string{"edge"}
	for mode, colors := range palettes(t) {
		known := slices.Concat([]string{"paper", "card"}, graphics, decoration)
		for ink, backgrounds := range text {
			known = append(append(known, ink), backgrounds...)
			for _, b := range backgrounds {
				require.GreaterOrEqual(t, contrast(t, colors[ink], colors[b]), 4.5, "%s: %s on %s", mode, ink, b)
			}
		}
		for _, c := range graphics {
			require.GreaterOrEqual(t, contrast(t, colors[c], colors["card"]), 3.0, "%s: %s", mode, c)
		}
		for name := range colors {
			require.Contains(t, known, name, "%s: a colour that is not checked", mode)
		}
	}
	_, rules, _ := strings.Cut(pageStyle, "*{")
	fixed := regexp.MustCompile(`#[0-9a-f]{3}|rgb\(|hsl|opacity`)
	require.Empty(t, fixed.FindAllString(strings.ReplaceAll(rules, "#cards", ""), -1))
	for _, c := range regexp.MustCompile(`[^-]color:([^;}]+)`).FindAllStringSubmatch(rules, -1) {
		name := strings.TrimSuffix(strings.TrimPrefix(c[1], "var(--"), ")")
		require.True(t, c[1] == "inherit" || text[name] != nil, "text of %s is not checked", c[1])
	}
}
