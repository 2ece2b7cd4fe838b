package inspect

import (
	"bytes"
	"encoding/json"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestPageOfHostileText: the data of the page have the text unchanged, whatever it is, and the page loads nothing.
func TestPageOfHostileText(t *testing.T) {
	for _, c := range []tinylm.Config{small(), dense(), mixed()} {
		w := weightsOf(t, c)
		for _, text := range hostile() {
			r := testutil.Must(Inspect(w, tinylm.Bytes{}.Encode(text), Options{Title: text}))(t)
			var page bytes.Buffer
			require.NoError(t, r.WriteHTML(&page))
			require.True(t, utf8.Valid(page.Bytes()))
			require.NotContains(t, page.String(), "\x00")
			require.Equal(t, 2, strings.Count(page.String(), "</script>"), text)
			require.Equal(t, 2, strings.Count(page.String(), "<script"), text)
			_, rest, ok := strings.Cut(page.String(), `<script id="data" type="application/json">`)
			require.True(t, ok)
			data, _, _ := strings.Cut(rest, "</script>")
			var d struct{ Tokens []string }
			require.NoError(t, json.Unmarshal([]byte(data), &d))
			require.Equal(t, shown(r.Tokens), d.Tokens)
			loads := regexp.MustCompile(`(?i)(\ssrc=|<link|<iframe|url\(|@import|href="[^#])`)
			require.Empty(t, loads.FindString(page.String()))
		}
	}
}

// TestShown: the shown text does not depend on how the text is cut into tokens. It has all characters that may be
// printed, in their order, and for each other character or byte one sign.
func TestShown(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 4))
	for _, text := range append(hostile(), prose) {
		whole := shown([]string{text})[0]
		var cut []string
		for i := 0; i < len(text); {
			n := r.IntN(4) // an empty token, too
			n = min(n, len(text)-i)
			cut = append(cut, text[i:i+n])
			i += n
		}
		parts := shown(cut)
		require.Len(t, parts, len(cut))
		require.Equal(t, whole, strings.Join(parts, ""))
		require.Equal(t, whole, tinylm.Printable(whole))
		sign := regexp.MustCompile("[␀-␡]|⟨[^⟩]*⟩").ReplaceAllString(whole, "\uFFFD")
		require.Equal(t, tinylm.Printable(text), sign)
	}
	for text, want := range map[string]string{
		"a\x00\n\t\x1b\x7fé":                  "a␀\n\t␛␡é",
		"\U0001F469\u200D\U0001F4BB n\u200Cm": "\U0001F469\u200D\U0001F4BB n\u200Cm", // joiner and non-joiner
		// variation selector, marks, soft hyphen
		"\u2764\uFE0F e\u0301 \u0939\u093F\u00AD": "\u2764\uFE0F e\u0301 \u0939\u093F\u00AD",
		"\u00A0\u3000":                       "\u00A0\u3000",
		"\u202Ea\u2066b\u200F":               "⟨U+202E⟩a⟨U+2066⟩b⟨U+200F⟩",
		"\u2028\u0085\uFEFF\u200B\U000E0067": "⟨U+2028⟩⟨U+0085⟩⟨U+FEFF⟩⟨U+200B⟩⟨U+E0067⟩",
		"\xe2\x82":                           "⟨E2⟩⟨82⟩", // the window ends inside of a character
		"\xac\xed\xa0\x80 \uFFFD":            "⟨AC⟩⟨ED⟩⟨A0⟩⟨80⟩ \uFFFD",
	} {
		require.Equal(t, want, strings.Join(shown(strings.Split(text, "")), ""))
		require.Equal(t, want, shown([]string{text})[0])
	}
	require.Equal(t, []string{"a", "é", "", "⟨E2⟩"}, shown([]string{"a", "\xc3", "\xa9", "\xe2"}))
}

// readPNG returns the width of a picture and its number of colours.
func readPNG(t *testing.T, path string) (width, colors int) {
	picture := testutil.Must(png.Decode(testutil.Closing(os.Open(path))(t)))(t)
	found := map[any]bool{}
	for y := 0; y < picture.Bounds().Dy(); y += 3 {
		for x := 0; x < picture.Bounds().Dx(); x += 3 {
			found[picture.At(x, y)] = true
		}
	}
	return picture.Bounds().Dx(), len(found)
}

// TestSave: all files exist, and may be written again.
func TestSave(t *testing.T) {
	for name, want := range map[string][]string{
		"nsa":   {"blocks.png", "distance.png", "gates.png", "index.html", "loss.png"},
		"dense": {"distance.png", "index.html", "loss.png"},
	} {
		r := report(t, configs()[name], prose)
		folder := filepath.Join(t.TempDir(), "a", "b")
		require.NoError(t, r.Save(folder))
		require.NoError(t, r.Save(folder))
		var names []string
		for _, e := range testutil.Must(os.ReadDir(folder))(t) {
			names = append(names, e.Name())
			if filepath.Ext(e.Name()) == ".png" {
				_, colors := readPNG(t, filepath.Join(folder, e.Name()))
				require.Greater(t, colors, 5, e.Name())
			}
		}
		require.Equal(t, want, names)
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	require.ErrorContains(t, report(t, small(), prose).Save(filepath.Join(file, "folder")), "inspect: ")
}

// TestPageRefuses: a start outside of the report is an error.
func TestPageRefuses(t *testing.T) {
	for _, start := range []QueryRef{{3, 0, 0}, {0, 2, 0}, {0, 0, 96}, {-1, 0, 0}} {
		r := report(t, small(), prose)
		r.Start = start
		require.ErrorContains(t, r.WriteHTML(&bytes.Buffer{}), "below 3, 2, 96")
	}
}
