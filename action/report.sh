# The report of the GitHub Action, see action.yml: annotations, the comment's Markdown, and the exit status.
# Reads the files of the pull request, and runs none of them.
set -uo pipefail

mmrewrite="$RUNNER_TEMP/mmrewrite/bin/mmrewrite"
report="$RUNNER_TEMP/mmrewrite-comment.md"
messages="$RUNNER_TEMP/mmrewrite-messages.txt"

# What the tool says may quote a file of the pull request, which could spell a command to the runner.
quote() {
    local end
    end=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    printf '::stop-commands::%s\n' "$end"
    cat
    printf '\n::%s::\n' "$end"
}

case "$FAIL_ON" in
errors | refusals | changes | never) ;;
*)
    echo "fail-on must be errors, refusals, changes or never" >&2
    exit 2
    ;;
esac

paths=()
while IFS= read -r path; do
    if [ -n "$path" ]; then paths+=("$path"); fi
done <<<"$PATHS"
case "$SINCE" in
-*)
    echo "since must be a git revision" >&2
    exit 2
    ;;
esac

options=(--strict --color never)
shown=()
if [ -n "$SINCE" ]; then
    # actions/checkout brings the last commit only.
    git cat-file -e "$SINCE^{commit}" 2>/dev/null || git fetch --quiet --no-tags --depth=1 origin "$SINCE"
    options+=(--since "$SINCE")
fi
if [ -n "$EVIDENCE" ]; then shown+=(--evidence "$EVIDENCE"); fi
# `--` so that no path is taken for an option. The expansion is empty for an empty array in every version of bash.
files=(-- ${paths[@]+"${paths[@]}"})

"$mmrewrite" diff "${options[@]}" ${shown[@]+"${shown[@]}"} --format markdown "${files[@]}" >"$report" 2>"$messages"
status=$?
if [ ! -s "$report" ]; then
    quote <"$messages"
    echo "status=$status" >>"$GITHUB_OUTPUT"
    exit "$status"
fi
quote <"$messages"
"$mmrewrite" diff "${options[@]}" --quiet --format github "${files[@]}" 2>/dev/null
changes=0
"$mmrewrite" diff "${options[@]}" --quiet --exit-code --format json "${files[@]}" >"$RUNNER_TEMP/mmrewrite.json" 2>/dev/null
changes=$?
empty=$("$RUNNER_TEMP/mmrewrite/bin/python" -P -c '
import json, sys

summary = json.load(open(sys.argv[1], encoding="utf-8"))["summary"]
print("true" if not any(summary[key] for key in ("rewritten", "left", "refused", "files_with_errors")) else "false")
' "$RUNNER_TEMP/mmrewrite.json")
cat "$report" >>"$GITHUB_STEP_SUMMARY"
{
    echo "status=$status"
    echo "report=$report"
    echo "empty=$empty"
} >>"$GITHUB_OUTPUT"

case "$FAIL_ON" in
never) exit 0 ;;
errors) if [ "$status" -ge 2 ]; then exit "$status"; fi ;;
refusals) exit "$status" ;;
changes) exit "$changes" ;;
esac
