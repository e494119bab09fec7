# millrace: `make` lists what there is.
SHELL := /bin/bash
GO ?= go
BIN := bin
GOFILES := cmd demo docs internal test workshop

# Compiled one way for all targets, so that what one has compiled serves the others. Without the tables of
# debuggers, which are a third of a program: stack traces and profiles need none.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -ldflags=-w)

# golangci-lint is compiled once for a user, not once for a clone.
LINT_VERSION := v2.15.0
TOOLS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/millrace/tools
LINT := $(TOOLS)/golangci-lint-$(LINT_VERSION)

# Where git does not answer, Go cannot note the commit and would refuse to build.
VCS := $(if $(shell git rev-parse HEAD 2>/dev/null),,-buildvcs=false)

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build bin/millrace and bin/millrace-bench
	$(GO) build $(VCS) -o $(BIN)/ ./cmd/millrace ./cmd/millrace-bench

# Built, not `go run`: so a signal reaches the demo, which then ends its servers.
.PHONY: demo
demo: build ## Two real replica sets: load, copy under writes, cut over, verify
	$(GO) build $(VCS) -o $(BIN)/demo ./demo
	$(BIN)/demo --millrace $(BIN)/millrace

.PHONY: demo-sharded
demo-sharded: build ## The same with three shards to two, and chunks that move all the while
	$(GO) build $(VCS) -o $(BIN)/demo ./demo
	$(BIN)/demo --millrace $(BIN)/millrace --source sharded:3x1 --target $(DEMO_TARGET) --docs 100000 \
		--capture $(CAPTURE) --via $(VIA)

.PHONY: demo-files
demo-files: build ## The same by files: three new members from a secondary's files, with the time by documents beside it
	$(GO) build $(VCS) -o $(BIN)/demo ./demo
	$(BIN)/demo --millrace $(BIN)/millrace --files --docs 400000

.PHONY: demo-service
demo-service: build ## The same by the service: serve, one more worker, a job made by the API, the console's address
	$(GO) build $(VCS) -o $(BIN)/demo ./demo
	$(BIN)/demo --millrace $(BIN)/millrace --service --source rs:1 --docs 60000

.PHONY: demo-reverse
demo-reverse: build ## There and back: millrace reverse after each cut-over, replica sets and sharded clusters
	$(GO) build $(VCS) -o $(BIN)/demo ./demo
	$(BIN)/demo --millrace $(BIN)/millrace --back --source rs:1 --docs 60000
	$(BIN)/demo --millrace $(BIN)/millrace --back --source sharded:3x1 --target $(DEMO_TARGET) --docs 40000

# What the sharded demo copies to.
DEMO_TARGET ?= sharded:2x1

# How the demo and random tests read the source: CAPTURE=change-streams VIA=routers. Millrace and its tests read the
# same variables. Random tests leave out what change streams do not carry, by docs/reference/capture.md.
CAPTURE ?= auto
VIA ?= auto
one hunt soak matrix: export MILLRACE_CAPTURE = $(CAPTURE:auto=)
one hunt soak matrix: export MILLRACE_VIA = $(VIA:auto=)

# SCENARIOS, SCALE, ROUNDS and PEERS choose what is measured, for example
#   make bench SCALE=medium PEERS='--peer secondary --peer pcsm=/path/to/pcsm'
SCENARIOS ?= all
SCALE ?= small
ROUNDS ?= 3
.PHONY: bench
bench: build ## Measure against the ceilings; results in bin/bench.json and bin/bench.html
	$(BIN)/millrace-bench bench $(SCENARIOS) --scale $(SCALE) --rounds $(ROUNDS) $(PEERS) --output json --report $(BIN)/bench.json
	$(BIN)/millrace-bench bench show $(BIN)/bench.json --output html > $(BIN)/bench.html

# The tests' servers keep their data in memory where there is plenty: what is
# made to be thrown away waits for no disk at each schema change.
PLENTY = $(shell test -w /dev/shm && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 8000000' | grep -q . && \
	awk '/^MemAvailable/ && $$2 > 12000000 {print "/dev/shm"}' /proc/meminfo)
test race stress one soak hunt nightly matrix: export MILLRACE_LAB_DIR ?= $(PLENTY)

# Three packages go side by side, and two tests of each: servers start, elect and wait, and
# while some wait others use the processors. More at once takes more processor time, for
# servers that have nothing to do take some, too.
PARALLEL ?= 2
TIMEOUT ?= 40m
# Vetting is for make lint.
GOTEST = $(GO) test -vet=off -timeout $(TIMEOUT) -parallel $(PARALLEL)
TESTS = ./cmd/... ./demo/... ./docs/internals/model ./internal/... ./test/... ./workshop/...
# make test plays the same tests with the same seeds each time: those of test/testseed/seeds.
# What takes longest it leaves to make nightly (lab.Nightly, lab.Share).
test: export MILLRACE_TEST_BRIEF := 1
# These draw a seed and print it. MILLRACE_TEST_SEED=<seed> make … plays the same again.
hunt soak nightly: export MILLRACE_TEST_SEED := $(or $(MILLRACE_TEST_SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))

# The race detector takes two to four times the processor time. make test uses it where
# goroutines pass documents to each other; make race does for everything that has goroutines.
# In scenarios, faults, trials and measurements millrace runs as a process or is measured.
RACE = ./internal/follow ./internal/pace ./internal/progress ./internal/sink/mongo ./internal/sink/mongo/... \
	./internal/source/merge ./internal/source/spool ./internal/stream ./internal/wire ./test/sinktest
# These few put many bytes through few goroutines, and go without it.
BULK = TestDocumentsBeyondTheApplyBuffer|TestStatementsBeyondLimits|TestUsersApplyOps
RACY = $$(grep -rlE --include='*.go' --exclude='*_test.go' '"sync|errgroup|^\s+go ' cmd demo internal workshop | \
	grep -v ^workshop/bench | xargs -n1 dirname | sort -u | sed 's|^|./|') ./test/crash
PROGRAM = $(CURDIR)/$(BIN)/millrace
.PHONY: test
test: build ## The tests on real mongod processes that fit in 12 minutes, the same each time
	@$(MAKE) --no-print-directory -j test-plain test-race

test-plain test-race test-alone race matrix one: export MILLRACE_TEST_PROGRAM = $(PROGRAM)
test-plain test-race test-alone race matrix one: export MILLRACE_TEST_BENCH = $(PROGRAM)-bench
test-plain: export MILLRACE_TRIAL_PROGRAM = $(PROGRAM)-failpoint
race: export MILLRACE_TEST_PROGRAM_RACE = $(PROGRAM)-race

# What takes longest begins first.
LONG = ./test ./test/sharded ./test/failover ./internal/seed ./internal/job ./workshop/bench ./test/service ./test/seed ./test/trial \
	./cmd/... ./internal/sink/mongo ./internal/copy ./internal/verify ./internal/service/worker
# -count=1: millrace runs as a process, and Go's test cache does not see it change.
.PHONY: test-plain
test-plain: build
	$(GO) build $(VCS) -tags failpoint -o $(PROGRAM)-failpoint ./cmd/millrace
	race=$(if $(RACE),$$($(GO) list $(RACE))); \
	$(GOTEST) -p 3 -count=1 $$($(GO) list $(LONG) $(TESTS) | awk '!had[$$0]++' | grep -vxF -e "$$race" -e "$$($(GO) list ./test/memory)")

.PHONY: test-race
test-race: build
	$(GOTEST) -p 1 -count=1 -race -skip '$(BULK)' $(RACE)
	@$(MAKE) --no-print-directory test-alone

# The memory of a process is measured with nothing else beside it.
.PHONY: test-alone
test-alone: build
	MILLRACE_LAB_DIR= $(GOTEST) -count=1 ./test/memory
	$(GOTEST) -tags failpoint ./internal/failpoint

.PHONY: race
race: build ## The race detector on all that has goroutines, twice as long as make test
	$(GO) build $(VCS) -race -o $(PROGRAM)-race ./cmd/millrace
	$(GOTEST) -p 2 -count=1 -race $(RACY)

# What make test has no time for, too, with another seed each night.
nightly: export MILLRACE_TEST_FAULTS := all
nightly: export TIMEOUT = 3h
.PHONY: nightly
nightly: build ## All tests with a random seed, with the race detector and on all server versions: hours
	@echo "MILLRACE_TEST_SEED=$(MILLRACE_TEST_SEED)"; \
	for part in 'test-plain RACE=' test-alone race matrix; do \
		echo "== make $$part, $$(date +%T)"; \
		$(MAKE) --no-print-directory $$part || failed="$$failed, make $$part"; \
	done; test -z "$$failed" || { echo "failed$$failed; again: MILLRACE_TEST_SEED=$(MILLRACE_TEST_SEED) make nightly"; exit 1; }

# The tests of make test again and again, while something else keeps all processors busy.
stress: ROUNDS = 10
.PHONY: stress
stress: build ## make test ROUNDS times (10) on busy processors, until one fails
	@for cpu in $$(seq $$(nproc)); do awk 'BEGIN {for (;;);}' & busy="$$busy $$!"; done; trap 'kill $$busy' EXIT; \
	for round in $$(seq $(ROUNDS)); do \
		echo "== round $$round of $(ROUNDS), $$(date +%T)"; \
		$(MAKE) --no-print-directory test || { echo "round $$round failed"; exit 1; }; \
	done

# -short skips what needs a server. Trials and scenarios all do.
UNIT = $$($(GO) list ./cmd/... ./demo/... ./internal/... ./test/history ./workshop/...)
.PHONY: unit
unit: ## The tests that need no server, in less than a minute once compiled
	$(GO) test -short -timeout 5m $(UNIT)

# Servers that a call has started run on for KEEP, and the next call borrows them:
# those of one member without users, TLS, proxies or a name. KEEP=0 starts new ones.
# ARGS go to go test: ARGS='-v -count=5', ARGS=-update for golden files.
RUN ?= .
KEEP ?= 15m
.PHONY: one
one: build ## The tests RUN of the package PKG, on servers that run on: PKG=./internal/job RUN=TestX
	@test -n "$(PKG)" || { echo "which package? make one PKG=./internal/job RUN=TestX"; exit 1; }
	MILLRACE_LAB_KEEP=$(KEEP) $(GO) test -count=1 -timeout 40m -run '$(RUN)' $(PKG) $(ARGS)

# Old and new in turn, so that what else the machine does falls on both.
BENCHSTAT := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
BENCHPKGS ?= ./internal/delta ./internal/source/oplog ./internal/sink/mongo ./internal/bsonraw ./internal/wire
BENCH ?= .
COUNT ?= 6
.PHONY: benchstat
benchstat: ## Micro-benchmarks BENCH of the commit BASE against the present tree
	@test -n "$(BASE)" || { echo "against which commit? make benchstat BASE=main"; exit 1; }
	@dir=$$(mktemp -d) && trap 'git -C "$(CURDIR)" worktree remove --force "$$dir/old"; rm -rf "$$dir"' EXIT && \
	git worktree add --quiet --detach "$$dir/old" "$(BASE)" && ln -s "$(CURDIR)" "$$dir/new" && \
	for tree in old new; do for pkg in $(BENCHPKGS); do \
		mkdir -p "$$dir/$$tree.bin" && cd "$$dir/$$tree/" || exit 1; \
		test ! -d $$pkg || $(GO) test -c -o "$$dir/$$tree.bin/" $$pkg || exit 1; \
	done; done; \
	for round in $$(seq $(COUNT)); do for tree in old new; do for bin in "$$dir/$$tree.bin"/*.test; do \
		"$$bin" -test.short -test.run '^$$' -test.bench '$(BENCH)' -test.benchmem -test.benchtime 0.2s >> "$$dir/$$tree.txt" || exit 1; \
	done; done; done; \
	cd "$$dir" && GOFLAGS= $(GO) run $(BENCHSTAT) old.txt new.txt

# How long each target is fuzzed.
FUZZTIME ?= 30s
.PHONY: fuzz
fuzz: ## Damaged bytes for everything that reads bytes from outside, FUZZTIME=30s each
	@for pkg in $$(grep -rl --include='*_test.go' '^func Fuzz' $(GOFILES) | xargs -n1 dirname | sort -u); do \
		for target in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$pkg/*_test.go | cut -d' ' -f2); do \
			echo "== $$pkg $$target"; \
			$(GO) test ./$$pkg -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) || failed="$$failed $$pkg:$$target"; \
		done; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

.PHONY: lint
lint: $(LINT) prose ## Formatting, vet, linters, and make prose
	@bad=$$(gofmt -l $(GOFILES)); test -z "$$bad" || { echo "run gofmt -w on:"; echo "$$bad"; exit 1; }
	$(GO) vet ./...
	$(LINT) run ./...

$(LINT):
	@mkdir -p $(TOOLS)
	@echo "Compiling golangci-lint $(LINT_VERSION), this once: minutes on a small machine"
	dir=$$(mktemp -d $(TOOLS)/install-XXXXXX) && trap 'rm -rf "$$dir"' EXIT && \
	GOBIN=$$dir GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION) && \
	mv "$$dir/golangci-lint" $@

# The words and sentences of pages, comments and messages, by the rules in .vale.
VALE_VERSION := v3.22.0
VALE := $(TOOLS)/vale-$(VALE_VERSION)
.PHONY: prose
prose: $(VALE) ## Words and sentences of all pages, comments and messages
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(GO) build -o "$$dir/texts" ./test/texts && \
	"$$dir/texts" "$$dir/go" cmd demo internal workshop && \
	$(VALE) --output line --config .vale.ini --glob='!docs/{cli/**,reference/errors.md}' $$(git ls-files '*.md' ':!*/testdata/*') "$$dir/go" | sed "s|$$dir/go/||; s|\.go\.txt:|.go:|" | \
	awk '{print} END {exit NR > 0}'

$(VALE):
	@mkdir -p $(TOOLS)
	@echo "Compiling vale $(VALE_VERSION), this once: minutes on a small machine"
	dir=$$(mktemp -d $(TOOLS)/install-XXXXXX) && trap 'rm -rf "$$dir"' EXIT && \
	GOBIN=$$dir GOFLAGS= $(GO) install github.com/vale-cli/vale/v3/cmd/vale@$(VALE_VERSION) && mv "$$dir/vale" $@

.PHONY: docs
docs: build ## Write the references of commands and errors, and the schema of the configuration
	$(GO) test -count 1 -run '^TestDocsAreUpToDate$$' ./cmd/millrace ./cmd/millrace-bench -args -update
	$(BIN)/millrace config schema > docs/millrace.schema.json
	$(GO) run ./test/texts errors cmd/millrace internal > docs/reference/errors.md

.PHONY: docs-check
docs-check: ## Fail when docs/cli, the errors or the schema are not what the code says
	@$(GO) test -count 1 -run '^Test(Docs|Schema)' ./cmd/millrace ./cmd/millrace-bench
	@$(GO) run ./test/texts errors cmd/millrace internal | diff -u docs/reference/errors.md - || \
		{ echo "docs/reference/errors.md is out of date: run make docs and commit"; exit 1; }

.PHONY: docs-run
docs-run: build ## Run the commands of README, tutorial and guides on lab clusters
	test/pages/run.sh README.md docs/start/*.md docs/guides/*.md

# It takes ten minutes and the programs chromium and script.
.PHONY: pictures
pictures: build ## Take the pictures of the console and of a terminal in docs/img from runs of the demo
	$(GO) build $(VCS) -o $(BIN)/ ./demo ./test/pictures
	$(BIN)/pictures docs/img $(BIN)

SOAK ?= 30m

.PHONY: soak
soak: ## Writers, faults, kills, commands under rules and trials of all themes drawn from seeds, each for SOAK (30m); TOPOLOGY=sharded: from and to shards
	@echo "MILLRACE_TEST_SEED=$(MILLRACE_TEST_SEED)"
ifeq ($(TOPOLOGY),sharded)
	MILLRACE_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 0 -run TestSoak ./test/sharded
	MILLRACE_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 0 -run TestSoakOfSharded ./test/commands
else
	MILLRACE_TEST_ROUNDS=100 $(GO) test -count=1 -timeout 0 -run TestEquivalence ./internal/sink/mongo
	MILLRACE_TEST_ROUNDS=300 $(GO) test -count=1 -timeout 0 -run TestHistories ./internal/sink/mongo/resolve
	MILLRACE_TEST_ROUNDS=30 $(GO) test -count=1 -timeout 0 -run TestCappedHistories ./internal/job
	MILLRACE_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 0 -run TestSoak ./test/failover
	MILLRACE_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 0 -run TestSoak ./test/trial
	MILLRACE_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 0 -run 'TestSoak$$' ./test/commands
endif

# THEMES is one or more of those in test/trial, separated by commas.
.PHONY: hunt
hunt: ## Trials of each of THEMES for SOAK until one fails, which is shrunk and printed as a script
	@echo "MILLRACE_TEST_SEED=$(MILLRACE_TEST_SEED)"
	MILLRACE_TRIAL_THEME=$(THEMES) MILLRACE_TRIAL_FOR=$(SOAK) MILLRACE_TRIAL_SHRINK=5m $(GO) test -count=1 -v -timeout 0 -run TestHunt ./test/trial

# PAIRS are versions of a source and a target. With servers of 7.0 go also the faults of
# test/failover and the kills of test/crash; wine64 runs them, where there is no mongod of that version.
PAIRS ?= 4.2:4.4 4.4:5.0 5.0:6.0 4.2:6.0 6.0.27:6.0.27 6.0:7.0 7.0:7.0
.PHONY: matrix
matrix: build ## The scenarios between the server versions PAIRS, 4.2 to 7.0, and what else depends on them
	@seven="$$MILLRACE_MONGOD_7_0 $$(command -v wine64 /usr/lib/wine/wine64; mongod --version 2>/dev/null | grep 'version v7\.0')"; \
	for pair in $(PAIRS); do \
		echo "== $${pair%:*} to $${pair#*:}"; faults=; \
		case $$pair in *7.0*) faults="./test/failover ./test/crash"; test "$$seven" != " " || { \
			echo "skipped: needs wine64 (Debian, Ubuntu: apt-get install --no-install-recommends wine64), or a mongod 7.0 in MILLRACE_MONGOD_7_0"; continue; };; esac; \
		MILLRACE_TEST_MATRIX=1 MILLRACE_TEST_SOURCE=$${pair%:*} MILLRACE_TEST_TARGET=$${pair#*:} \
			$(GO) test -p 1 -count=1 -timeout 60m ./test ./internal/schema $$faults || failed="$$failed $$pair"; \
	done; \
	MILLRACE_TEST_MATRIX=1 $(GO) test -p 1 -count=1 -timeout 60m ./workshop/lab ./internal/state ./workshop/lab/sharded ./internal/delta ./internal/fields \
		./internal/source/oplog ./internal/source/shards ./internal/job ./internal/seed ./workshop/bench ./test/seed ./test/sharded || failed="$$failed older servers"; \
	for version in 4.2 4.4 5.0 7.0; do \
		case $$version in 7.0) test "$$seven" != " " || { echo "skipped: 7.0 in test/access"; continue; };; esac; \
		MILLRACE_TEST_VERSION=$$version $(GO) test -count=1 -timeout 60m ./test/access || failed="$$failed access:$$version"; \
	done; \
	for version in 4.4 5.0; do \
		MILLRACE_TEST_VERSION=$$version $(GO) test -count=1 -timeout 60m ./test/sharded || failed="$$failed sharded:$$version"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# nfpm makes the deb and rpm files. Newer ones draw in modules that not all proxies have.
.PHONY: dist
dist: export NFPM := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4
dist: export SBOM := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
dist: ## Packages for Linux in dist: tar.gz, deb, rpm, for amd64 and arm64, their SBOM and checksums
	GO="$(GO)" packaging/dist
	packaging/check

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BIN) dist
