//! What `examples/clusters` holds for Kubernetes: that the pods of each manifest find each other, that there are as many as each
//! is told, and that all name the image of the Containerfile. A cluster is not asked.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::release::version;

/// The documents of a manifest.
fn documents(name: &str) -> Vec<Value> {
    let file = folder().join(name);
    let text = std::fs::read_to_string(&file).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn folder() -> std::path::PathBuf {
    xtask::root().join("examples/clusters")
}

/// The document of this kind.
fn of<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<&Value> = documents.iter().filter(|one| one["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}: {documents:#?}");
    found[0]
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

/// The value of a variable that a container is told.
fn variable<'a>(container: &'a Value, name: &str) -> &'a Value {
    let all = container["env"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}: {all:#?}"))
}

/// What holds for the Indexed Job `job` whose first pod is called `first`: its one container.
fn members<'a>(job: &'a Value, first: &str) -> &'a Value {
    assert_eq!(job["completionMode"], "Indexed", "a pod's index is its rank");
    assert_eq!(job["completions"], job["parallelism"], "all run at the same time");
    let pod = &job["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "Never", "a process that failed is no member any more");
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    let container = &containers[0];
    let size = variable(container, "WORLD_SIZE")["value"].as_str().unwrap();
    assert_eq!(size.parse::<u64>().ok(), job["completions"].as_u64(), "as many as there are");
    assert_eq!(variable(container, "MASTER_ADDR")["value"], first);
    let port = variable(container, "MASTER_PORT")["value"].as_str().unwrap();
    assert!(port.parse::<u16>().is_ok(), "{port}");
    assert!(
        pod["terminationGracePeriodSeconds"].as_u64() > Some(30),
        "a checkpoint takes its time"
    );
    let stops = words(&container["lifecycle"]["preStop"]["exec"]["command"]);
    // SIGTERM comes when this command has ended
    assert!(stops[2].starts_with("kill -INT 1; sleep"), "{stops:?}");
    let patience = variable(container, "TENSORWIRE_GATHER_TIMEOUT")["value"].as_str().unwrap();
    assert!(patience.parse::<u32>().is_ok_and(|seconds| seconds >= 600), "a node may be started");
    let key = &variable(container, "TENSORWIRE_SECRET")["valueFrom"]["secretKeyRef"];
    assert_eq!((&key["name"], &key["key"]), (&"tensorwire".into(), &"secret".into()));
    assert_eq!(container["image"], format!("registry.example/tensorwire:{}", version()));
    assert_eq!(container["command"], Value::Null, "the image starts tensorwire by itself");
    assert_eq!(words(&container["args"])[0], "train");
    container
}

#[test]
fn pods_of_an_indexed_job_meet_at_the_first() {
    let documents = documents("kubernetes.yaml");
    let (service, job) = (of(&documents, "Service"), of(&documents, "Job"));
    let name = job["metadata"]["name"].as_str().unwrap();
    let subdomain = &job["spec"]["template"]["spec"]["subdomain"];
    assert_eq!(subdomain, &service["metadata"]["name"], "the names of pods are that service's");
    assert_eq!(service["spec"]["clusterIP"], "None");
    assert_eq!(
        service["spec"]["publishNotReadyAddresses"], true,
        "they meet before they are ready"
    );
    assert_eq!(service["spec"]["selector"]["job-name"], name);
    members(&job["spec"], &format!("{name}-0.{}", subdomain.as_str().unwrap()));
}

#[test]
fn pods_of_a_jobset_meet_and_go_on_from_the_checkpoint_that_all_reach() {
    let documents = documents("jobset.yaml");
    let (set, claim) = (of(&documents, "JobSet"), of(&documents, "PersistentVolumeClaim"));
    let name = set["metadata"]["name"].as_str().unwrap();
    assert_eq!(set["spec"]["network"]["enableDNSHostnames"], true);
    assert!(set["spec"]["failurePolicy"]["maxRestarts"].as_u64() > Some(0));
    let jobs = set["spec"]["replicatedJobs"].as_array().unwrap();
    // an index counts within its job
    assert_eq!((jobs.len(), &jobs[0]["replicas"]), (1, &1.into()));
    let member = jobs[0]["name"].as_str().unwrap();
    let job = &jobs[0]["template"]["spec"];
    let container = members(job, &format!("{name}-{member}-0-0.{name}"));
    // a wrong option, by the status that a user's mistake has, fails the set as it is
    let rule = &job["podFailurePolicy"]["rules"][0];
    let codes = &rule["onExitCodes"];
    assert_eq!((&rule["action"], &codes["values"][0]), (&"FailJob".into(), &2.into()));
    assert_eq!((&codes["operator"], &codes["containerName"]), (&"In".into(), &container["name"]));
    let rule = &set["spec"]["failurePolicy"]["rules"][0];
    assert_eq!(rule["action"], "FailJobSet");
    assert_eq!(words(&rule["onJobFailureReasons"]), ["PodFailurePolicy"]);
    let args = words(&container["args"]);
    let after = |option: &str| args[args.iter().position(|arg| *arg == option).unwrap() + 1];
    assert_eq!(after("--resume"), "auto");
    let mount = &container["volumeMounts"][0];
    assert!(after("--checkpoint").starts_with(mount["mountPath"].as_str().unwrap()));
    let volume = &job["template"]["spec"]["volumes"][0];
    assert_eq!(volume["name"], mount["name"]);
    assert_eq!(volume["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"]);
    assert_eq!(words(&claim["spec"]["accessModes"]), ["ReadWriteMany"], "all pods write to it");
}

/// `kubectl logs job/NAME` follows any pod, and one alone prints.
#[test]
fn the_pod_that_prints_is_the_one_that_is_followed() {
    let docs = std::fs::read_to_string(xtask::root().join("docs/several-machines.md")).unwrap();
    let read = |name| std::fs::read_to_string(folder().join(name)).unwrap();
    let index = "batch.kubernetes.io/job-completion-index=0";
    for (text, job) in [
        (docs, "digits"),
        (read("kubernetes.yaml"), "digits"),
        (read("jobset.yaml"), "digits-member-0"),
    ] {
        let followed = format!("kubectl logs --follow -l job-name={job},{index}");
        assert!(text.contains(&followed), "{followed}");
    }
}

#[test]
fn a_cluster_of_ray_has_room_for_all_that_its_job_places() {
    let documents = documents("ray.yaml");
    let spec = &of(&documents, "RayJob")["spec"];
    let cluster = &spec["rayClusterSpec"];
    let workers = &cluster["workerGroupSpecs"][0];
    let image = format!("registry.example/tensorwire-ray:{}", version());
    let of_ray = |group: &Value| group["template"]["spec"]["containers"][0].clone();
    for group in [&cluster["headGroupSpec"], workers] {
        assert_eq!(of_ray(group)["image"], image);
    }
    let ray =
        format!("RAY_IMAGE=docker.io/rayproject/ray:{}", cluster["rayVersion"].as_str().unwrap());
    assert!(containerfile().contains(&ray), "the image has the manifest's version of Ray");
    let line = spec["entrypoint"].as_str().unwrap();
    let line: Vec<&str> = line.split(' ').collect();
    assert!(
        containerfile().contains(&format!("examples/clusters/train_on_ray.py {}", line[1])),
        "{line:?}"
    );
    let number = |option: &str| {
        let at = line.iter().position(|word| *word == option).unwrap();
        line[at + 1].parse::<u64>().unwrap()
    };
    let cpus = of_ray(workers)["resources"]["limits"]["cpu"].as_str().unwrap().parse::<u64>();
    let room = cpus.unwrap() * workers["replicas"].as_u64().unwrap();
    // the head has none, and each process takes one
    assert_eq!(cluster["headGroupSpec"]["rayStartParams"]["num-cpus"], "0");
    assert!(number("--workers") + number("--servers") <= room, "{line:?}: {room} CPUs");
}

fn containerfile() -> String {
    std::fs::read_to_string(xtask::root().join("Containerfile")).unwrap()
}

#[test]
fn the_containerfile_makes_the_images_of_this_version_for_a_user_who_is_not_root() {
    let text = containerfile();
    for image in ["tensorwire", "tensorwire-ray"] {
        let named = format!("registry.example/{image}:{} ", version());
        assert!(text.contains(&named), "{named}");
    }
    let user = text.lines().find_map(|line| line.strip_prefix("USER ")).unwrap();
    let ids: Vec<u32> = user.split(':').map(|id| id.parse().unwrap()).collect();
    assert!(ids.iter().all(|id| *id > 0), "{user}");
    // so that it may write to a volume of the JobSet's
    let set = documents("jobset.yaml");
    let pod =
        &of(&set, "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["fsGroup"], ids[1]);
}

/// Runs a command that only reads a file; None where its program is not installed.
fn accepts(program: &str, arguments: &[&str], file: &Path) -> Option<(bool, String)> {
    let output = Command::new(program).args(arguments).arg(file).output().ok()?;
    Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn the_scripts_can_be_read_by_what_runs_them() {
    let mut read = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let file = entry.unwrap().path();
        let accepted = match file.extension().and_then(|extension| extension.to_str()) {
            Some("sh") => accepts("bash", &["-n"], &file),
            // compiles, and writes nothing
            Some("py") => accepts(
                "python3",
                &["-c", "import sys; compile(open(sys.argv[1]).read(), sys.argv[1], 'exec')"],
                &file,
            ),
            _ => continue,
        };
        if let Some((is_good, says)) = accepted {
            assert!(is_good, "{}: {says}", file.display());
            read += 1;
        }
    }
    assert!(read >= 2, "bash is there, where this project is tested");
}
