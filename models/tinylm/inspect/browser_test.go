package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// browser returns the path of a Chromium. Without one the test is skipped.
func browser(t *testing.T) string {
	const names = "chromium chromium-browser google-chrome google-chrome-stable chrome headless_shell"
	for name := range strings.FieldsSeq(names) {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no chromium, google-chrome or chrome in PATH")
	return ""
}

// visit opens a page in a window of the given width, and returns its elements after its script has run.
func visit(t *testing.T, path, page, anchor string, width int, flags ...string) string {
	ctx := t.Context()
	if end, ok := t.Deadline(); ok { // of go test, before which a browser that hangs fails this test alone
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-10*time.Second))
		defer cancel()
	}
	address := url.URL{Scheme: "file", Path: filepath.ToSlash(page), Fragment: anchor}
	args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--user-data-dir=" + t.TempDir(), fmt.Sprintf("--window-size=%d,900", width)}, flags...)
	c := exec.CommandContext(ctx, path, append(args, address.String())...)
	c.WaitDelay = time.Second
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); !errors.Is(err, exec.ErrWaitDelay) { // a helper process of the browser may keep its output open
		require.NoError(t, err, errs.String())
	}
	return out.String()
}

// attribute returns the value that the script has written to an attribute of the page's root.
func attribute(dom, name string) string {
	found := regexp.MustCompile(`^<!DOCTYPE html>\s*<html[^>]* data-` + name + `="([^"]*)"`).FindStringSubmatch(dom)
	if found == nil {
		return ""
	}
	return found[1]
}

// uses is a script that uses the page as a reader would, and records what the page shows.
const uses = `<script>{
const root = document.documentElement, $ = id => document.getElementById(id);
root.dataset.wide = root.scrollWidth - innerWidth;
if ($('map')) {
	const all = [];
	for (const layer of $('layer').options) for (const group of $('group').options) {
		$('layer').value = layer.value;
		$('group').value = group.value;
		$('controls').dispatchEvent(new Event('input'));
		all.push(root.dataset.cells);
	}
	root.dataset.all = all.join(' ');
	$('in').click();
	root.dataset.zoomed = root.dataset.cells;
	let unseen = 0; // queries without a sign in the text or without a name below it
	for (let q = 0; q < Number(root.dataset.tokens); q++) {
		$('query').value = q;
		$('controls').dispatchEvent(new Event('input'));
		const marked = document.querySelectorAll('#text .query');
		const named = document.querySelector('#about .query').textContent;
		if (marked.length !== 1 || !marked[0].textContent || !named) unseen++;
	}
	root.dataset.unseen = unseen;
	$('all').click();
	document.querySelector('[data-t="17"]').click();
	root.dataset.clicked = location.hash;
	root.dataset.cards = $('cards').childElementCount;
	document.querySelector('[data-t="84"]').click();
	root.dataset.same = [...document.querySelectorAll('#text .same')].map(e => e.dataset.t).join(' ');
}
}</script>`

// TestPageInBrowser: on any text, the script runs without an error, draws the cells that Go has counted, and shows what
// is clicked. The page is not wider than a narrow window.
func TestPageInBrowser(t *testing.T) {
	path := browser(t)
	for name, c := range map[string]struct {
		config tinylm.Config
		text   string
	}{
		"nsa": {small(), prose}, "dense": {dense(), prose}, "mixed": {mixed(), prose}, "markup": {small(), hostile()[0] + hostile()[1]},
		"bytes": {small(), hostile()[2] + hostile()[3] + hostile()[4]}, "without losses": {small(), prose},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Options{Title: c.text, NoLoss: name == "without losses"}
			r := testutil.Must(Inspect(weightsOf(t, c.config), tinylm.Bytes{}.Encode(c.text), o))(t)
			require.Equal(t, !o.NoLoss, r.HasLoss())
			page := filepath.Join(t.TempDir(), "a page.html")
			var b bytes.Buffer
			require.NoError(t, r.WriteHTML(&b))
			b.WriteString(uses)
			require.NoError(t, os.WriteFile(page, b.Bytes(), 0o644))
			dom := visit(t, path, page, "layer=1&group=1&query=50", 500, "--dump-dom")
			require.Equal(t, "1", attribute(dom, "ready"), dom[:min(len(dom), 300)])
			require.Empty(t, attribute(dom, "error"))
			require.Empty(t, attribute(dom, "hacked"))
			require.Equal(t, fmt.Sprint(len(r.Tokens)), attribute(dom, "tokens"))
			require.Equal(t, "0", attribute(dom, "wide"))
			if !r.HasBlocks() {
				return
			}
			var cells []string
			for layer := range r.Layers {
				for group := range r.Layers[layer].Groups {
					cells = append(cells, fmt.Sprint(numSelected(r.Layers[layer], group)))
				}
			}
			require.Equal(t, strings.Join(cells, " "), attribute(dom, "all"))
			last := numSelected(r.Layers[len(r.Layers)-1], r.Layers[0].Groups-1)
			require.Less(t, testutil.Must(strconv.Atoi(attribute(dom, "zoomed")))(t), last)
			require.Equal(t, "0", attribute(dom, "unseen"))
			require.Equal(t, fmt.Sprint(last), attribute(dom, "cells"))
			clicked := fmt.Sprintf("#layer=%d&amp;group=%d&amp;query=17", len(r.Layers)-1, r.Layers[0].Groups-1)
			require.Equal(t, clicked, attribute(dom, "clicked"))
			require.Equal(t, "3", attribute(dom, "cards"), "blocks of 8 tokens up to 17")
			if name == "nsa" {
				const before = "15 16 17 18 19 39 40 41 42 43" // where the word query stands before 84
				require.Equal(t, before, attribute(dom, "same"))
			}
		})
	}
}

// phone is a page with a frame of a phone's width, since a window is not narrower than 500 pixels. It records which
// elements of the page in the frame reach beyond the screen, and which tables and texts have to be scrolled sideways.
const phone = `<!DOCTYPE html><html><body><iframe width="%d" height="700" src="%s" onload="{
const page = this.contentDocument, width = page.documentElement.clientWidth, data = document.documentElement.dataset;
const list = [...page.body.querySelectorAll('*')];
data.ready = page.documentElement.dataset.ready;
const names = which => list.filter(which).map(e => e.outerHTML.slice(0, 40)).join(' ');
data.wide = names(e => e.getBoundingClientRect().right > width + 0.5);
const scrolls = e => e.scrollWidth > e.parentElement.clientWidth;
data.scrolled = names(e => e.matches('table,#text,#cards,pre,p,li,form') && scrolls(e));
}"></iframe></body></html>`

// TestPageOnPhone: on a phone nothing is wider than the screen, and tables and text need no sideways scrolling.
func TestPageOnPhone(t *testing.T) {
	path := browser(t)
	for name, c := range map[string]tinylm.Config{"nsa": small(), "dense": dense(), "mixed": mixed()} {
		folder := t.TempDir()
		r := report(t, c, strings.Repeat(prose, 2)) // several windows: numbers in the table
		require.NoError(t, r.Save(folder))
		for _, width := range []int{320, 400} {
			frame := filepath.Join(folder, "phone.html")
			require.NoError(t, os.WriteFile(frame, fmt.Appendf(nil, phone, width, PageFile), 0o644))
			dom := visit(t, path, frame, "", 800, "--dump-dom", "--allow-file-access-from-files")
			require.Equal(t, "1", attribute(dom, "ready"), "%s: %s", name, dom[:min(len(dom), 300)])
			require.Empty(t, attribute(dom, "wide"), "%s, %d pixels", name, width)
			require.Empty(t, attribute(dom, "scrolled"), "%s, %d pixels", name, width)
		}
	}
}

// TestPagePicture: the page has a picture that is not empty.
func TestPagePicture(t *testing.T) {
	path := browser(t)
	folder := t.TempDir()
	require.NoError(t, report(t, small(), prose).Save(folder))
	shot := filepath.Join(folder, "page.png")
	visit(t, path, filepath.Join(folder, PageFile), "", 1280, "--screenshot="+shot)
	width, colors := readPNG(t, shot)
	require.Equal(t, 1280, width)
	require.Greater(t, colors, 50)
}
