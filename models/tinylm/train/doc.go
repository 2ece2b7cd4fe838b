// Package train trains a TinyLM as a program does that is left alone for days: it reads its data while it trains, shows how it
// goes, evaluates, writes checkpoints, and goes on from them after a stop or a kill.
//
// Run does all of it by Options, which are the flags of examples/train and the lines of a YAML file. A run is a folder:
//
//	config.yaml                     all options
//	run.json                        command, versions, device, identity of the data, results
//	steps.csv events.jsonl *.png    record of the steps, see internal/runlog
//	tensorboard/                    the same for TensorBoard
//	checkpoints/step-000000500/     model.safetensors, config.json, optimizer.safetensors, state.json, SHA256SUMS
//	model.safetensors config.json   at the end: the weights of the best checkpoint by held-out loss
//
// A run by steps that is stopped or killed and resumed has the bits of one that was not. In a run by time the learning rate follows
// the clock, so two runs differ in any case.
package train
