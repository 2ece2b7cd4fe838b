#!/usr/bin/env bash
# Runs the tests and examples of this folder and prints one table. With NSA_REQUIRE_GPU=0 tests skip for want of a GPU.
set -u
cd "$(dirname "$0")" || exit 2

usage() {
    cat <<END
usage: run.sh [-only NAME,NAME] [-timeout SECONDS] [-sanitizer memcheck|racecheck|initcheck|synccheck]
              [-logs FOLDER] [-list] [-- FLAGS]
  -only       run these alone; -list prints the names
  -timeout    for each binary, 600 by default; ten times as much under a sanitizer
  -sanitizer  run the tests that use a GPU, and no others, under that tool of compute-sanitizer
  -logs       folder for the logs, logs by default; another one for each of several at once
  FLAGS       for the test binaries, such as -test.run OnGPU
The exit status is 1 if anything has failed, 2 for a wrong call.
END
}

wrong() {
    echo "run.sh: $*" >&2
    usage >&2
    exit 2
}

only='' all=1 limit=600 tool='' list='' logs=logs
while [ $# -gt 0 ]; do
    case $1 in
    -only | -timeout | -sanitizer | -logs)
        [ $# -ge 2 ] || wrong "$1 wants a value"
        case $1 in
        -only) only=$2 all='' ;;
        -timeout) limit=$2 ;;
        -sanitizer) tool=$2 ;;
        -logs) logs=$2 ;;
        esac
        shift 2
        ;;
    -list) list=1 && shift ;;
    -help | --help | -h) usage && exit 0 ;;
    --) shift && break ;;
    *) wrong "unexpected $1" ;;
    esac
done
case $limit in '' | *[!0-9]* | ?????????*) wrong "-timeout $limit is not a number of seconds" ;; esac
limit=$((10#$limit))
[ "$limit" -gt 0 ] || wrong "-timeout is 0"
[ -n "$all$only" ] || wrong "-only names nothing"
if [ -n "$list" ]; then
    cut -f 1,3 binaries.tsv
    exit 0
fi
for name in ${only//,/ }; do
    cut -f 1 binaries.tsv | grep -Fxq -- "$name" || wrong "nothing is named $name; -list prints the names"
done
under=()
if [ -n "$tool" ]; then
    command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    command -v compute-sanitizer >/dev/null || wrong "compute-sanitizer is not here"
    # The test that makes a kernel fail on purpose is left out, and so are errors that calls return: tests ask for some.
    export NSA_SANITIZER=1
    under=(compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9)
    set -- -test.skip '^TestFaultOnGPU$' "$@"
    limit=$((10 * limit))
fi

export NSA_REQUIRE_GPU="${NSA_REQUIRE_GPU-1}"
gpu=auto
case $NSA_REQUIRE_GPU in
1 | t | T | true | True | TRUE) gpu=cuda:0 ;;
'' | 0 | f | F | false | False | FALSE) ;;
*) wrong "NSA_REQUIRE_GPU is '$NSA_REQUIRE_GPU', want a boolean" ;;
esac
mkdir -p "$logs" || exit 2
logs=$(cd "$logs" && pwd)
summary=$logs/summary.txt
notes=$logs/notes.txt
: >"$notes"
{
    command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    printf '%-20s %-10s %7s %7s %7s %8s\n' package result tests failed skipped seconds
} >"$summary"
cat "$summary"

bad=0 ran=0
while IFS=$'\t' read -r name folder device command <&3; do
    case ",$only," in ",,") ;; *",$name,"*) ;; *) continue ;; esac
    [ -z "$tool" ] || [ "$device" = gpu ] || continue
    ran=$((ran + 1))
    log=$logs/${name//\//-}.log
    read -r -a words <<<"${command//@device/$gpu}"
    [ "$device" = program ] || words+=(-test.v "-test.timeout=$((limit + 60))s" "$@")
    begin=$SECONDS
    (cd "$folder" && exec timeout -k 10 "$limit" "${under[@]+"${under[@]}"}" "${words[@]}") >"$log" 2>&1 </dev/null
    status=$?
    took=$((SECONDS - begin))
    read -r tests failed skipped <<<"$(awk '
        /^ *--- (PASS|FAIL|SKIP): / { n++; if ($2 == "FAIL:") f++; if ($2 == "SKIP:") s++ }
        END { print n+0, f+0, s+0 }' "$log")"
    result=ok
    case $status in
    0) ;;
    124 | 137) result=timeout ;;
    9) if [ -n "$tool" ]; then result=$tool; else result=FAIL; fi ;;
    *) result=FAIL ;;
    esac
    if [ -n "$tool" ]; then # its word is the summary, not the tests that have passed
        said=$(sed -n 's/^=* \(.*SUMMARY: .*\)/\1/p' "$log" | tail -n 1)
        echo "$tool: $name: ${said:-no summary}" >>"$notes"
        case $result/$said in
        ok/*SUMMARY:\ 0\ *) ;;
        ok/*) result=$tool ;;
        esac
    fi
    printf '%-20s %-10s %7s %7s %7s %8s\n' "$name" "$result" "$tests" "$failed" "$skipped" "$took" | tee -a "$summary"
    awk -v name="$name" '/^ *--- SKIP: / { if (++n <= 5) print "skipped: " name ": " $3 }
        END { if (n > 5) print "skipped: " name ": " n - 5 " more" }' "$log" >>"$notes"
    if [ "$result" != ok ]; then
        bad=$((bad + 1))
        awk -v name="$name" ' # a test whose subtests have failed goes without saying
            /^ *--- FAIL: / { test[++n] = $3; for (p = $3; sub("/[^/]*$", "", p); ) parent[p] = 1 }
            END { for (i = 1; i <= n; i++) if (!(test[i] in parent)) print "FAILED:  " name ": " test[i] }' "$log" >>"$notes"
        if [ "$failed" = 0 ] || [ "$result" != FAIL ]; then
            echo "FAILED:  $name: exit status $status; the end of $log:" >>"$notes"
            tail -n 5 "$log" | sed 's/^/    /' >>"$notes"
        fi
    fi
done 3<binaries.tsv

{
    cat "$notes"
    if [ "$ran" = 0 ]; then
        echo "nothing was run"
    elif [ "$bad" = 0 ]; then
        echo "ok: $ran run"
    else
        echo "FAILED: $bad of $ran"
    fi
} | tee -a "$summary"
[ "$bad" = 0 ] && [ "$ran" -gt 0 ]
