package nsa_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// object is what all objects of Kubernetes have.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
}

// service and job are the fields of Kubernetes' Service (v1) and Job (batch/v1) that the documents use.
type service struct {
	object `yaml:",inline"`
	Spec   struct {
		ClusterIP string `yaml:"clusterIP"`
		Selector  map[string]string
	}
}

type job struct {
	object `yaml:",inline"`
	Spec   struct {
		CompletionMode           string `yaml:"completionMode"`
		Completions, Parallelism int
		BackoffLimit             *int `yaml:"backoffLimit"`
		Template                 struct{ Spec pod }
	}
}

type pod struct {
	Subdomain     string
	RestartPolicy string `yaml:"restartPolicy"`
	Grace         int    `yaml:"terminationGracePeriodSeconds"`
	Containers    []struct {
		Name, Image   string
		Command, Args []string
		Env           []struct {
			Name      string
			Value     any // which has to be a string
			ValueFrom *struct {
				SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
			} `yaml:"valueFrom"`
		}
		Resources struct{ Limits map[string]int }
		Mounts    []struct {
			Name string
			Path string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	Volumes []struct {
		Name  string
		Claim *struct {
			Name string `yaml:"claimName"`
		} `yaml:"persistentVolumeClaim"`
		EmptyDir *struct{ Medium string } `yaml:"emptyDir"`
	}
}

// codeBlocks returns the blocks of a language in docs/distributed.md.
func codeBlocks(t *testing.T, language string) (blocks []string) {
	text := testutil.Must(os.ReadFile("docs/distributed.md"))(t)
	for _, b := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllSubmatch(text, -1) {
		blocks = append(blocks, string(b[1]))
	}
	return blocks
}

// TestLaunchersManifest: the manifest has no field that Kubernetes lacks, and all that it needs. What one part names,
// another one has. The processes of its pods are the ranks of one job.
func TestLaunchersManifest(t *testing.T) {
	blocks := codeBlocks(t, "yaml")
	require.Len(t, blocks, 1)
	parts := strings.Split(blocks[0], "---\n")
	require.Len(t, parts, 2)
	var s service
	var j job
	for i, to := range []any{&s, &j} {
		d := yaml.NewDecoder(strings.NewReader(parts[i]))
		d.KnownFields(true)
		require.NoError(t, d.Decode(to))
	}
	require.Equal(t, []string{"v1", "Service", "None"}, []string{s.APIVersion, s.Kind, s.Spec.ClusterIP})
	require.Equal(t, []string{"batch/v1", "Job", "Indexed"}, []string{j.APIVersion, j.Kind, j.Spec.CompletionMode})
	name, spec := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`), j.Spec.Template.Spec
	for _, n := range []string{s.Metadata.Name, j.Metadata.Name} {
		require.Regexp(t, name, n)
	}
	require.Equal(t, map[string]string{"job-name": j.Metadata.Name}, s.Spec.Selector)
	require.Equal(t, s.Metadata.Name, spec.Subdomain)
	require.Contains(t, []string{"Never", "OnFailure"}, spec.RestartPolicy) // of a Job
	require.Equal(t, j.Spec.Completions, j.Spec.Parallelism, "ranks wait for each other")
	require.Len(t, spec.Containers, 1)
	c := spec.Containers[0]
	require.Regexp(t, name, c.Name)
	require.NotEmpty(t, c.Image)

	var volumes, mounted []string
	for _, v := range spec.Volumes {
		require.True(t, (v.Claim != nil) != (v.EmptyDir != nil) && (v.Claim == nil || v.Claim.Name != ""), v.Name)
		volumes = append(volumes, v.Name)
	}
	for _, m := range c.Mounts {
		require.True(t, filepath.IsAbs(m.Path), m.Path)
		mounted = append(mounted, m.Name)
	}
	require.Equal(t, volumes, mounted)

	var env []string
	for _, v := range c.Env {
		text := any("secret")
		if v.ValueFrom == nil {
			text = v.Value
		} else {
			require.True(t, v.Value == nil && v.ValueFrom.SecretKeyRef.Name != "" && v.ValueFrom.SecretKeyRef.Key != "", v.Name)
		}
		require.IsType(t, "", text, v.Name)
		env = append(env, fmt.Sprint(v.Name, "=", text))
	}
	var ranks []dist.Options
	for index := range j.Spec.Completions {
		ranks = append(ranks, processes(t, slices.Concat(c.Command, c.Args),
			append(env, fmt.Sprint("JOB_COMPLETION_INDEX=", index)))...)
	}
	requireRanks(t, ranks, j.Spec.Completions, c.Resources.Limits["nvidia.com/gpu"],
		fmt.Sprintf("%s-0.%s.default.svc.cluster.local", j.Metadata.Name, spec.Subdomain))
}

// TestLaunchersSlurm: the processes of the script for sbatch are the ranks of one job.
func TestLaunchersSlurm(t *testing.T) {
	const hosts, gpus = 2, 8
	for _, script := range codeBlocks(t, "sh") {
		if !strings.HasPrefix(script, "#!") {
			continue
		}
		for option, n := range map[string]int{"nodes": hosts, "ntasks-per-node": gpus, "gpus-per-node": gpus} {
			require.Contains(t, script, fmt.Sprintf("\n#SBATCH --%s=%d\n", option, n))
		}
		requireRanks(t, processes(t, []string{"bash", "-c", script}, []string{"SLURM_JOB_ID=1234567",
			"SLURM_JOB_NODELIST=node[7-8]", fmt.Sprint("SLURM_NTASKS=", hosts*gpus)}), hosts, gpus, "node7")
		return
	}
	t.Fatal("no script")
}

// standIns are programs of the scripts: train writes its environment to a file, srun starts a process for each task.
var standIns = map[string]string{
	"train":    `env -0 >"$(dirname "$0")/$$.env"`,
	"scontrol": "echo node7; echo node8",
	"srun": `test "$1" = ./train || exit 1; for i in $(seq 0 $((SLURM_NTASKS - 1)))
		do SLURM_PROCID=$i SLURM_LOCALID=$((i % 8)) train; done`,
}

// processes runs a command with these variables and returns the options of the processes of train that it starts.
func processes(t *testing.T, command, env []string) (list []dist.Options) {
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	for name, script := range standIns {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	var errs bytes.Buffer
	c := exec.Command(command[0], command[1:]...)
	c.Env, c.Stderr = append(env, "PATH="+dir+":"+os.Getenv("PATH")), &errs
	require.NoError(t, c.Run(), errs.String())
	require.Empty(t, errs.String())
	for _, file := range testutil.Must(filepath.Glob(filepath.Join(dir, "*.env")))(t) {
		t.Run("FromEnv", func(t *testing.T) {
			for variable := range strings.SplitSeq(string(testutil.Must(os.ReadFile(file))(t)), "\x00") {
				if name, value, ok := strings.Cut(variable, "="); ok {
					t.Setenv(name, value)
				}
			}
			o, launched, err := dist.FromEnv()
			require.NoError(t, err)
			require.True(t, launched)
			list = append(list, o)
		})
	}
	return list
}

// requireRanks requires that each rank is in the list, with the address and secret of rank 0.
func requireRanks(t *testing.T, list []dist.Options, hosts, gpus int, host string) {
	require.Len(t, list, hosts*gpus)
	seen := map[int]bool{}
	for _, o := range list {
		require.False(t, seen[o.Rank])
		seen[o.Rank] = true
		require.Equal(t, hosts*gpus, o.Size)
		require.Equal(t, o.Rank%gpus, o.LocalRank)
		require.Regexp(t, `^`+regexp.QuoteMeta(host)+`:\d+$`, o.Addr)
		require.Equal(t, list[0].Addr, o.Addr)
		require.NotEmpty(t, o.Secret)
		require.Equal(t, list[0].Secret, o.Secret)
	}
}
