#!/bin/sh
# look.sh makes docs/look_light.png, look_dark.png and look_phone.png from the README's first command. It needs Chromium and pngquant.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go run ./examples/recall -models nsa -free 1 -out "$work"

# shot NAME PAGE WIDTH HEIGHT [FLAG...] writes docs/look_NAME.png.
shot() {
	name=$1 page=$2 width=$3 height=$4
	shift 4
	chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update \
		--disable-sync --hide-scrollbars --allow-file-access-from-files --user-data-dir="$work/$name" --window-size="$width,$height" \
		--screenshot="$work/$name.png" "$@" "file://$work/$page" 2>"$work/errors" || { cat "$work/errors" >&2; exit 1; }
	pngquant --force --speed 1 --strip --output "docs/look_$name.png" 48 "$work/$name.png"
}

# Three screens of 360 pixels: the head of the page, the text, and the table.
cat >"$work/phone.html" <<'HTML'
<!DOCTYPE html><meta charset="utf-8"><style>body{margin:16px;background:#8a93a3;display:flex;gap:16px}iframe{border:0;border-radius:12px;background:#fff}</style>
<script>
const show = (frame, selector) => frame.contentDocument.querySelector(selector).scrollIntoView();
const toTop = frame => frame.contentDocument.querySelector('#text').scrollTop = 0;
</script>
<iframe width="360" height="760" src="look/index.html"></iframe>
<iframe width="360" height="760" src="look/index.html" onload="show(this, '#text'), toTop(this)"></iframe>
<iframe width="360" height="760" src="look/index.html" onload="show(this, '#selection + section')"></iframe>
HTML
shot light look/index.html 1280 1030 --blink-settings=preferredColorScheme=1
shot dark look/index.html 1280 1030 --blink-settings=preferredColorScheme=0
shot phone phone.html 1144 792 --blink-settings=preferredColorScheme=1
