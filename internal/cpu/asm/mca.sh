#!/usr/bin/env bash
# Compares the inner loop of tile32 for arm64, 6 rows by 16 columns, with the rate of fused multiply-adds of LLVM's
# models of processors. It prints a line for each model, with -v its whole report, and fails below 90 % of the rate.
# It needs Go and LLVM, of which 19 has models of the Neoverse and 14 has none.
set -euo pipefail
cd "$(dirname "$0")/.."

# tool prints the newest installed version of a tool of LLVM.
tool() { compgen -c "$1" | grep -E "^$1(-[0-9]+)?$" | sort -Vu | tail -n 1; }
mca=$(tool llvm-mca) objdump=$(tool llvm-objdump)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go test -c -o "$work/test" .
# the first loop with products: from the target of its branch to the branch
tile32=$(go list .).tile32.abi0
"$objdump" -d --no-show-raw-insn --disassemble-symbols="$tile32" "$work/test" |
    awk '/^ *[0-9a-f]+:/ { at = $1; sub(":", "", at); sub(/^ *[0-9a-f]+:/, ""); line[++n] = $0; place[at] = n }
        /fmla/ { products = 1 }
        products && !done && /b\.ne/ { target = $2; sub("0x", "", target)
            for (i = place[target]; i < n; i++) print line[i]
            print "b.ne ."; done = 1 }' >"$work/loop.s"
for i in {0..23}; do echo "fmla v$i.4s, v30.4s, v31.s[0]"; done >"$work/fmla.s"

# rate prints the products in a cycle of a file.
rate() {
    "$mca" -mtriple=aarch64 -mcpu="$1" -iterations=1000 "$2" >"$work/report"
    awk -v n="$(grep -c fmla "$2")" '/^Total Cycles/ { printf "%.3f", n * 1000 / $3 }' "$work/report"
}

failed=0
for model in apple-m1 neoverse-n1 neoverse-v1; do
    most=$(rate $model "$work/fmla.s") got=$(rate $model "$work/loop.s")
    [ "${1-}" != -v ] || cat "$work/report"
    awk -v m="$model" -v got="$got" -v most="$most" 'BEGIN {
        printf "%-12s %.2f of %.2f vector products per cycle: %.0f %%\n", m, got, most, 100 * got / most
        exit got < 0.9 * most }' || failed=1
done
exit $failed
