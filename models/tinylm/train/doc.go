// Package train trains a TinyLM in runs that may be left alone for days: it reads data while it trains, shows the
// progress, evaluates, writes checkpoints, and resumes from them after a stop or a kill.
//
// Run does all of this. Its Options are the flags of examples/train and the lines of a YAML file. A run is a folder;
// docs/training.md lists its files.
//
// If a run by steps is stopped or killed and then resumed, its results have the same bits as those of an uninterrupted
// run. In a run by time the learning rate follows the clock, so two runs always differ.
//
// The files in the order of a run:
//
//	Parse          flags.go, options.go, options_file.go (config.yaml)
//	Run, open      run.go, open.go, plan.go (memory, models, solver), run_folder.go (lock, files)
//	the loop       run.go (train), step.go, evaluate.go, layer_statistics.go
//	what it shows  display.go, warnings.go (and stalls)
//	checkpoints    save.go (writes), checkpoint.go (state, sums, reads)
//	ends           run.go (finish, signals), evaluate.go (sample)
//	a run's files  folder.go: the type of a run's folder
//	others         find.go: FindModel, for generate and inspect, and FindNewestRun, for generate
//
// A step reads its batches, launches a run of the model for each, the last one with the solver's step, and the copies
// of losses and norm. On a device the host then waits for the results of the step before, while this one runs.
//
// A checkpoint is a folder of weights, configuration, moments of the solver, state and checksums. It is written under
// another name and renamed when it is complete. Each evaluation writes one; -save-minutes adds others.
//
// -resume locks the run folder, takes the options of its config.yaml and the newest checkpoint whose checksums are
// right, and continues the order of the data after the checkpoint's last batch.
package train
