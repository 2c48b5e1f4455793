//! The workload program's side: it does in a directory what it is asked to, by ordinary calls of the standard library, and knows
//! nothing of Gannet. Under `gannet run` it measures a volume, otherwise whatever file system the directory is on.
//!
//! | file | concern |
//! | --- | --- |
//! | `protocol` | requests and replies |
//! | `measure` | the loop around the calls, clocks, histograms |
//! | `crew` | several threads or processes at once |
//! | `shapes` | what the calls are |

mod crew;
pub mod measure;
pub mod protocol;
pub mod shapes;

use protocol::{Job, Limit, Measurement, Reply, Request};
use shapes::{Setting, Shape};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};

/// Answers requests until there are no more, working in `directory`, which is removed at the end unless this is a member.
///
/// # Errors
/// If replies cannot be written or requests not be understood. What fails in a job is a reply.
pub fn serve(directory: &Path, is_member: bool, mut requests: impl BufRead, mut replies: impl Write) -> io::Result<()> {
    let mut server = Server { directory: directory.to_owned(), prepared: HashSet::new() };
    if !is_member {
        fs::create_dir_all(directory)?;
    }
    let mut line = String::new();
    loop {
        line.clear();
        if requests.read_line(&mut line)? == 0 {
            break;
        }
        let outcome = match serde_json::from_str(&line)? {
            Request::Prepare(job) => server.prepare(&job).map(|()| Reply::Ready),
            Request::Measure(job) => match job.member {
                Some(index) => server.member(&job, index, &mut requests, &mut replies).map(Reply::Measured),
                None => server.measure(&job).map(Reply::Measured),
            },
            Request::Count(job) => server.count(&job, &mut requests, &mut replies).map(|()| Reply::Ready),
            Request::Clean(job) => server.clean(&job).map(|()| Reply::Ready),
            Request::Go => Ok(Reply::Ready),
        };
        let reply = outcome.unwrap_or_else(|error| Reply::Failed(error.to_string()));
        say(&mut replies, &reply)?;
    }
    if is_member { Ok(()) } else { fs::remove_dir_all(directory) }
}

fn say(replies: &mut impl Write, reply: &Reply) -> io::Result<()> {
    writeln!(replies, "{}", serde_json::to_string(reply)?)?;
    replies.flush()
}

struct Server {
    directory: PathBuf,
    /// The places that have been made ready.
    prepared: HashSet<PathBuf>,
}

impl Server {
    fn shape(&self, job: &Job) -> io::Result<(Box<dyn Shape>, Setting)> {
        let shape = shapes::find(&job.shape)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("no shape is named {}", job.shape)))?;
        // Shapes that need the same files share them.
        let place = self.directory.join(shape.place(job));
        let workers = job.workers.max(1);
        let setting = Setting {
            directory: place,
            size_bytes: job.size_bytes.max(1),
            span_bytes: job.span_bytes.max(job.size_bytes),
            files: job.files.max(1),
            workers,
        };
        Ok((shape, setting))
    }

    fn prepare(&mut self, job: &Job) -> io::Result<()> {
        let (shape, setting) = self.shape(job)?;
        if !self.prepared.contains(&setting.directory) {
            fs::create_dir_all(&setting.directory)?;
            shape.prepare(&setting)?;
            self.prepared.insert(setting.directory);
        }
        Ok(())
    }

    fn measure(&mut self, job: &Job) -> io::Result<Measurement> {
        self.prepare(job)?;
        let (shape, setting) = self.shape(job)?;
        crew::work(shape.as_ref(), &setting, job, &self.directory)
    }

    /// Measures as one of several processes, which begin when they are told to.
    fn member(
        &mut self,
        job: &Job,
        index: u32,
        requests: &mut impl BufRead,
        replies: &mut impl Write,
    ) -> io::Result<Measurement> {
        let (shape, setting) = self.shape(job)?;
        let mut member = shape.member(&setting, index)?;
        say(replies, &Reply::Ready)?;
        requests.read_line(&mut String::new())?;
        measure::measure(&mut member, job.limit)
    }

    /// Makes the calls whose cost others count.
    fn count(&mut self, job: &Job, requests: &mut impl BufRead, replies: &mut impl Write) -> io::Result<()> {
        self.prepare(job)?;
        let (shape, setting) = self.shape(job)?;
        let mut member = shape.member(&setting, 0)?;
        let Limit::Calls { calls, .. } = job.limit else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "calls are counted, not milliseconds"));
        };
        let streams = RefCell::new((requests, replies));
        let before = || {
            let (requests, replies) = &mut *streams.borrow_mut();
            say(*replies, &Reply::Ready)?;
            requests.read_line(&mut String::new()).map(|_| ())
        };
        let after = |operations| {
            let (requests, replies) = &mut *streams.borrow_mut();
            say(*replies, &Reply::Measured(Measurement { operations, ..Measurement::default() }))?;
            requests.read_line(&mut String::new()).map(|_| ())
        };
        measure::count(&mut member, calls, before, after)
    }

    fn clean(&mut self, job: &Job) -> io::Result<()> {
        let (_, setting) = self.shape(job)?;
        self.prepared.remove(&setting.directory);
        match fs::remove_dir_all(&setting.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
