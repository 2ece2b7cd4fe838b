package inspect

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
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
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell"} {
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
	args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(),
		fmt.Sprintf("--window-size=%d,900", width)}, flags...)
	c := exec.CommandContext(ctx, path, append(args, address.String())...)
	c.WaitDelay = time.Second
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	require.NoError(t, c.Run(), errs.String())
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
	$('all').click();
	document.querySelector('[data-t="17"]').click();
	root.dataset.clicked = location.hash;
	root.dataset.cards = $('cards').childElementCount;
	document.querySelector('[data-t="84"]').click();
	root.dataset.same = [...document.querySelectorAll('#text .same')].map(e => e.dataset.t).join(' ');
}
}</script>`

// TestPageInBrowser: on any text, the script runs without an error, draws the cells that Go has counted, and shows what is clicked. The
// page is not wider than a narrow window.
func TestPageInBrowser(t *testing.T) {
	path := browser(t)
	for name, c := range map[string]struct {
		config tinylm.Config
		text   string
	}{
		"nsa": {small(), prose}, "dense": {dense(), prose}, "markup": {small(), hostile()[0] + hostile()[1]},
		"bytes": {small(), hostile()[2] + hostile()[3] + hostile()[4]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := report(t, c.config, c.text)
			r.Title = c.text
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
			require.Equal(t, fmt.Sprint(last), attribute(dom, "cells"))
			require.Equal(t, fmt.Sprintf("#layer=%d&amp;group=%d&amp;query=17", len(r.Layers)-1, r.Layers[0].Groups-1), attribute(dom, "clicked"))
			require.Equal(t, "3", attribute(dom, "cards"), "blocks of 8 tokens up to 17")
			if name == "nsa" {
				require.Equal(t, "15 16 17 18 19 39 40 41 42 43", attribute(dom, "same"), "where the word query stands before 84")
			}
		})
	}
}

// TestPagePicture: the page has a picture that is not empty.
func TestPagePicture(t *testing.T) {
	path := browser(t)
	folder := t.TempDir()
	require.NoError(t, report(t, small(), prose).Save(folder))
	shot := filepath.Join(folder, "page.png")
	visit(t, path, filepath.Join(folder, PageFile), "", 1280, "--screenshot="+shot)
	image := testutil.Must(png.Decode(testutil.Closing(os.Open(shot))(t)))(t)
	require.Equal(t, 1280, image.Bounds().Dx())
	colors := map[any]bool{}
	for y := range image.Bounds().Dy() {
		for x := range image.Bounds().Dx() {
			colors[image.At(x, y)] = true
		}
	}
	require.Greater(t, len(colors), 50)
}
