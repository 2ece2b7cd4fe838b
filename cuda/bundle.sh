#!/usr/bin/env bash
# Runs tests on a GPU host that has no Go.
#
#   cuda/bundle.sh FOLDER [PACKAGE...]     here: builds FOLDER from the tests of the packages, by default of those with GPU
#                                          work, with the files that they read, from bench, the examples and this script
#   FOLDER/run.sh [OPTION...] [-- FLAG...] there: runs tests and examples and prints one table. The flags, such as
#                                          -test.run OnGPU, go to the tests
#   -only PATH,PATH    run these alone; the last elements of a path suffice; -list prints the paths
#   -timeout SECONDS   for each of them: 600 by default, ten times as much under a sanitizer
#   -sanitizer TOOL    run the tests under memcheck, racecheck, initcheck or synccheck: the tool's summary is the result
#   -logs FOLDER       where the output is kept, logs by default; runs side by side want a folder each
# A test that finds no GPU fails, unless NSA_REQUIRE_GPU=0 is set. The exit status is 1 after a failure, 2 for bad arguments.

set -euo pipefail
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }
wrong() { printf '%s: %s\n' "${0##*/}" "$*" >&2 && usage >&2 && exit 2; }

build() {
    case ${1-} in '' | -*) wrong "want a folder to write to" ;; esac
    mkdir -p "$1" && out=$(cd "$1" && pwd) && shift
    [ -z "$(ls -A "$out")" ] || [ -f "$out/run.sh" ] || wrong "$out holds other files: want a folder of its own"
    rm -rf "$out"/{bin,test,logs,run.sh}
    cd "$(dirname "$0")/.."
    cp cuda/bundle.sh "$out/run.sh" # first: a build that was broken off can be run again
    export GOOS=linux GOARCH=${GOARCH:-amd64} CGO_ENABLED=${CGO_ENABLED:-0}
    packages=${*:-$(go list -test -f '{{.ImportPath}} {{.Deps}}' ./... |
        awk '$1 ~ /\.test$/ && /\/cuda\/internal\/driver[] ]/ { sub(/\.test$/, "", $1); print $1 }')}
    go list -f '{{.ImportPath}} {{.Dir}}' $packages | while read -r package dir; do
        echo "$package"
        to=$out/test/${dir#"$PWD/"}
        mkdir -p "$to"
        go test -c -ldflags='-s -w' -o "$to/${dir##*/}.test" "$package"
        find "$dir" -maxdepth 1 -type f ! -name '*.go' ! -name '*.s' ! -name '*.test' ! -name '.*' -exec cp {} "$to" \;
        [ ! -d "$dir/testdata" ] || cp -R "$dir/testdata" "$to"
    done
    go build -ldflags='-s -w' -o "$out/bin/" ./bench ./examples/...
}

# run_one runs the tests of a path, or an example, prints its line of the table and adds to notes and bad.
run_one() {
    name=$1 log=$logs/${1//\//-}.log begin=$SECONDS status=0 result=ok said=''
    command=("./${1##*/}.test" -test.v "-test.timeout=$((timeout + 60))s" "${@:2}")
    case $name in
    examples/attention) command=("$PWD/bin/attention" -device "$device") ;;
    examples/train) command=("$PWD/bin/train" -device "$device" -data random -steps 5) ;;
    esac
    (cd "test/$name" 2>/dev/null || cd bin && exec timeout -k 10 "$timeout" ${under[@]+"${under[@]}"} "${command[@]}") \
        >"$log" 2>&1 </dev/null || status=$?
    case $status in 0) ;; 124 | 137) result=timeout ;; *) result=FAIL ;; esac
    if [ -n "$sanitizer" ]; then
        said=$(sed -n 's/^=* \(.*SUMMARY: .*\)/\1/p' "$log" | tail -n 1)
        notes+="$sanitizer: $name: ${said:-no summary}"$'\n'
        case $status/$said in 124/* | 137/* | [!9]*/*"SUMMARY: 0 "*) ;; *) result=$sanitizer ;; esac
    fi
    read -r passed failed skipped < <(awk '/^ *--- PASS: / { p++ } /^ *--- FAIL: / { f++ } /^ *--- SKIP: / { s++ }
        END { print p + 0, f + 0, s + 0 }' "$log")
    printf '%-28s %-10s %7s %7s %7s %8s\n' "$name" "$result" "$passed" "$failed" "$skipped" $((SECONDS - begin))
    notes+=$(awk -v name="$name" '/^ *--- (SKIP|FAIL): / && n[$2]++ < 20 { print name ": " $2, $3 }' "$log")$'\n'
    [ "$result" = ok ] || bad=$((bad + 1)) notes+="$name: exit status $status; the end of $log:"$'\n'$(tail -n 5 "$log")$'\n'
}

report() {
    ! command -v nvidia-smi >/dev/null || nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true
    printf '%-28s %-10s %7s %7s %7s %8s\n' package result passed failed skipped seconds
    bad=0 notes=''
    for path in $chosen; do run_one "$path" "$@"; done
    grep . <<<"$notes" || true
    echo "failed: $bad of $(wc -w <<<"$chosen")"
    [ "$bad" = 0 ]
}

[ "${0##*/}" = run.sh ] || { build "$@"; exit; }
cd "$(dirname "$0")"
paths=$(find test -name '*.test' | sed 's|^test/||; s|/[^/]*$||' | sort; printf 'examples/%s\n' attention train)
only=.+ timeout=600 sanitizer='' logs=logs under=() device=cuda:0
while [ $# -gt 0 ]; do
    case $1 in
    -only | -timeout | -sanitizer | -logs) [ -n "${2-}" ] && declare "${1#-}=$2" && shift 2 || wrong "$1 wants a value" ;;
    -list) echo "$paths" && exit ;;
    -h | -help | --help) usage && exit ;;
    --) shift && break ;;
    *) wrong "unexpected $1" ;;
    esac
done
[[ $timeout =~ ^0*[1-9][0-9]{0,6}$ ]] && timeout=$((10#$timeout)) || wrong "-timeout $timeout is not a number of seconds"
case ${NSA_REQUIRE_GPU=1} in 0) device=auto ;; 1) export NSA_REQUIRE_GPU ;; *) wrong "NSA_REQUIRE_GPU=$NSA_REQUIRE_GPU, want 0 or 1" ;; esac
if [ -n "$sanitizer" ]; then # tests ask for errors of calls, and one makes a kernel fail on purpose
    [[ $sanitizer =~ ^(mem|race|init|sync)check$ ]] || wrong "-sanitizer $sanitizer, want memcheck, racecheck, initcheck or synccheck"
    PATH=$PATH:/usr/local/cuda/bin && command -v compute-sanitizer >/dev/null || wrong "compute-sanitizer is not here"
    export NSA_SANITIZER=1
    under=(compute-sanitizer --tool "$sanitizer" --report-api-errors no --error-exitcode 9)
    set -- -test.skip '^TestFaultOnGPU$' "$@"
    timeout=$((10 * timeout)) paths=$(grep -v ^examples/ <<<"$paths" || true)
fi
for name in ${only//,/ }; do grep -Eqx "(.*/)?$name" <<<"$paths" || wrong "nothing is named $name; -list prints the paths"; done
chosen=$(grep -Ex "(.*/)?(${only//,/|})" <<<"$paths")
mkdir -p "$logs" && logs=$(cd "$logs" && pwd)
report "$@" | tee "$logs/summary.txt"
