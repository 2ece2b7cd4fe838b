// Package train trains a TinyLM in runs that may be left alone for days: it reads data while it trains, shows the progress,
// evaluates, writes checkpoints, and resumes from them after a stop or a kill.
//
// Run does all of this. Its Options are the flags of examples/train and the lines of a YAML file. A run is a folder; docs/training.md
// lists its files.
//
// If a run by steps is stopped or killed and then resumed, its results have the same bits as those of an uninterrupted run. In a run
// by time the learning rate follows the clock, so two runs always differ.
package train
