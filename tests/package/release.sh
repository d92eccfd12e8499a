#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release.sh SOURCE_DIR: `./dev release` in a scratch clone: it refuses what must not be released, and says why; a dry run
# leaves no tag; the tarball is the same whenever it is made; the tag is signed.
set -euo pipefail
source=$1
git -C "$source" rev-parse --git-dir >/dev/null 2>&1 || { echo "not a git repository"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org

# The tree as it is, committed or not, in a repository of its own.
clone=$scratch/clone
mkdir "$clone"
git -C "$source" ls-files -z | (cd "$source" && xargs -0 ls -d 2>/dev/null | tar -c -T -) | tar -x -C "$clone"
cd "$clone"
git init -q -b main
git add -A
git commit -qm 'Begin'

version=$(sed -n 's/^project(weft VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)

fail() { echo "$*" >&2; exit 1; }

# refuses WORDS [VERSION]: and leaves neither tag nor tarball.
refuses() {
  local said
  if said=$(./dev release "${2-$version}" 2>&1); then fail "released, although: $1"; fi
  [[ $said == *"$1"* ]] || fail "expected \"$1\", not: $said"
  [[ -z $(git tag) && ! -e build/dist ]] || fail "refused, and left a tag or a tarball: $1"
}

commit_with_passed_test() {
  git commit -qam "$1"
  mkdir -p build
  echo "$(git rev-parse HEAD) --full" >>build/passed
}

refuses 'usage' next
refuses 'CMakeLists.txt says version' 9.9.9

# A changelog as that of a release: what was unreleased is the version's.
sed -i "/^## \[$version\]/d; s/^## \[Unreleased\]$/## [Unreleased]\n\n## [$version] - 2026-01-02\n\n- a change of the test/" CHANGELOG.md
refuses 'not committed'
git commit -qam 'Name the version in the changelog'
refuses "'./dev test --full' has not passed"
mkdir -p build
echo "$(git rev-parse HEAD) " >build/passed
refuses "'./dev test --full' has not passed"
parts=$(sed -n 's/^full_parts=(\(.*\))$/\1/p' dev | wc -w)
for ((part = 1; part < parts; part++)); do echo "$(git rev-parse HEAD) --full --part $part/$parts" >>build/passed; done
refuses "'./dev test --full' has not passed"
echo "$(git rev-parse HEAD) --full --part $parts/$parts" >>build/passed
./dev release "$version" --dry-run | grep -q 'can be released'
rm -r build/dist build/passed

sed -i "s/^## \[Unreleased\]$/&\n\n- one more change/" CHANGELOG.md
commit_with_passed_test 'Change more'
refuses 'under [Unreleased]'
sed -i '/^- one more change$/d' CHANGELOG.md
commit_with_passed_test 'Take it back'
sed -i "s/version = \"$version\"/version = \"9.9.9\"/" conanfile.py
commit_with_passed_test 'Forget a recipe'
refuses 'versions differ'
git revert --no-edit HEAD >/dev/null
echo "$(git rev-parse HEAD) --full" >>build/passed
git checkout -q -b other
refuses 'not the branch main'
git checkout -q main

said=$(./dev release "$version" --dry-run 2>&1)
[[ $said == *"the tag is not signed"* ]] || fail "no word of a tag without a signature: $said"
[[ -z $(git tag) ]] || fail "a dry run has tagged"
mv build/dist/weft-"$version".tar.gz "$scratch/dry.tar.gz"
ssh-keygen -q -t ed25519 -N '' -f "$scratch/key"
git config gpg.format ssh
git config user.signingKey "$scratch/key"
./dev release "$version"
git cat-file tag "v$version" | grep '^-----BEGIN SSH SIGNATURE-----$' >/dev/null || fail "the tag is not signed"
files=$(grep -c '^FileName: ' "build/dist/weft-$version.spdx")
((files >= $(git ls-files -- '*.hpp' '*.cpp' | wc -l))) || fail "the bill of materials has $files files"
cmp "$scratch/dry.tar.gz" "build/dist/weft-$version.tar.gz"
(cd build/dist && sha256sum -c --quiet "weft-$version.tar.gz.sha256")
[[ $(git cat-file -t "v$version") == tag ]] || fail "there is no annotated tag v$version"
git tag -l --format='%(contents)' "v$version" | grep -x -- '- a change of the test' >/dev/null || fail "the tag does not tell the changes"
tar -tf "build/dist/weft-$version.tar.gz" | grep -x "weft-$version/CMakeLists.txt" >/dev/null
if said=$(./dev release "$version" 2>&1); then fail "released twice"; fi
[[ $said == *"there is a tag v$version already"* ]] || fail "$said"
echo "released $version, in a clone"
