//! Assignments: what a head may ask of this stage, what it holds for it, and its end.

use super::{Held, StageSession};
use crate::pipeline::plan::{Key, short};
use crate::pipeline::session::{Action, send};
use crate::pipeline::wire::{Assign, Fault, Join, Member, Message, Purpose, Ready, VERSION, claim, model_hash};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Links that may wait for their roster.
const EARLY: usize = 64;

impl StageSession {
    pub(super) fn join(&mut self, from: Key, join: Join) {
        let known = from == self.head || self.heard.iter().any(|member| member.key == from);
        match join.purpose {
            Purpose::Hops { .. } if join.version == VERSION && known => {}
            // The stage before may have heard of the assignment, and linked, before its roster is here.
            Purpose::Hops { epoch } if join.version == VERSION && self.awaits(epoch) => self.early.push((from, epoch)),
            Purpose::Hops { .. } if join.version != VERSION => {
                let text = format!("{} speaks version {} of the wire, not {VERSION}", short(&from), join.version);
                self.refuse(from, "version", text);
            }
            _ => self.refuse(from, "roster", format!("{} is not on the roster: its link is refused", short(&from))),
        }
    }

    /// Whether links for this assignment may be ahead of its roster; strangers do not fill the memory.
    fn awaits(&self, epoch: u32) -> bool {
        self.early.len() < EARLY && self.held.as_ref().is_none_or(|held| epoch > held.assign.epoch)
    }

    fn refuse(&mut self, peer: Key, code: &str, text: String) {
        let fault = Fault { epoch: 0, sequence: None, code: code.into(), text: text.clone() };
        self.out.extend([Action::Say(text), send(peer, Message::Error(fault)), Action::Close { peer }]);
    }

    pub(super) fn roster(&mut self, mut members: Vec<Member>) {
        for member in &mut members {
            if member.key == self.me {
                // Its own figures are those it measured, whatever is said of them.
                (member.hello, member.about) = (self.hello.clone(), self.about.clone());
                continue;
            }
            let claim = claim(&self.head, &member.key, &member.hello, member.about.memory);
            if !(self.verify)(&member.key, &claim, &member.about.signature) {
                let text = format!("the roster's figures of {} are not signed by it", short(&member.key));
                return self.fail("roster", None, text);
            }
        }
        self.heard = members;
    }

    pub(super) fn assign(&mut self, assign: Box<Assign>) {
        let (stage, plan) = (assign.stage, &assign.plan);
        self.out.push_back(Action::Free(None));
        self.replays = None;
        // The roster comes before its assignment: who is not on it now will not be.
        let early = std::mem::take(&mut self.early);
        let (due, early): (Vec<_>, _) = early.into_iter().partition(|(_, epoch)| *epoch <= assign.epoch);
        self.early = early;
        for (peer, _) in due {
            if !self.heard.iter().any(|member| member.key == peer) {
                self.refuse(peer, "roster", format!("{} is not on the roster: its link is refused", short(&peer)));
            }
        }
        let key = |stage: u32| plan.key(stage as usize);
        let wrong = if key(stage) != Some(self.me) {
            Some(format!("stage {stage} of the plan is another device"))
        } else if key(0) != Some(self.head) {
            Some("the plan's head is not the head that sent it".to_owned())
        } else if stage == 0 {
            Some("stage 0 is the head's own".to_owned())
        } else {
            None
        };
        let previous = stage.checked_sub(1).and_then(key);
        let (Some(previous), None) = (previous, &wrong) else {
            let text = wrong.unwrap_or_else(|| "a plan without the stage before".to_owned());
            return self.fail("assignment", None, text);
        };
        let next = key(stage + 1);
        let model = model_hash(&assign.repo, &assign.revision, &assign.index);
        if let Some(to) = next {
            let member = self.heard.iter().find(|member| member.key == to);
            let addresses = member.map(|member| member.about.addresses.clone()).unwrap_or_default();
            self.out.push_back(Action::Dial { to, addresses, epoch: assign.epoch });
        }
        self.out.push_back(Action::Load { assign: assign.clone(), heard: self.heard.clone() });
        self.held = Some(Held {
            width: hidden_width(&assign),
            assign,
            model,
            previous,
            next,
            ready: None,
            linked: next.is_none(),
            announced: false,
            flows: BTreeMap::new(),
            finished: BTreeSet::new(),
            audited: BTreeSet::new(),
            queue: VecDeque::new(),
        });
    }

    /// The link for hops to the next stage is there.
    pub fn linked(&mut self, peer: Key) {
        if let Some(held) = self.held.as_mut().filter(|held| held.next == Some(peer)) {
            held.linked = true;
        }
        self.announce();
    }

    /// The assignment of this number was loaded, or not: an error's name and text.
    pub fn loaded(&mut self, epoch: u32, result: Result<Ready, (String, String)>) {
        let Some(held) = self.held.as_mut().filter(|held| held.assign.epoch == epoch) else { return };
        match (result, &mut self.replays) {
            (Ok(ready), Some((stage, here))) => {
                // It has its own program's digest, as every stage's ready has.
                *here = ready.stage == *stage;
                self.out.push_back(send(self.head, Message::Ready(ready)));
            }
            (Ok(ready), None) => {
                held.ready = Some(ready);
                self.announce();
            }
            (Err((code, text)), _) => self.fail(&code, None, text),
        }
    }

    /// Say once that all is loaded and linked.
    fn announce(&mut self) {
        let Some(held) = self.held.as_mut().filter(|held| held.linked && !held.announced) else { return };
        if let Some(ready) = held.ready {
            held.announced = true;
            self.out.push_back(send(self.head, Message::Ready(ready)));
        }
    }

    /// Take another stage's layers, to replay what came to it.
    pub(super) fn replay(&mut self, epoch: u32, stage: u32) {
        let held = self.held.as_mut().filter(|held| held.assign.epoch == epoch);
        let found = held.and_then(|held| {
            let layers = held.assign.plan.stages.get(stage as usize).filter(|_| stage > 0)?.layers.clone();
            held.queue.clear();
            Some(Assign { stage, layers, ..(*held.assign).clone() })
        });
        let Some(assign) = found else {
            return self.fail("replay", None, format!("there is no stage {stage} of assignment {epoch} to replay"));
        };
        self.replays = Some((stage, false));
        self.out.push_back(Action::Free(None));
        self.out.push_back(Action::Load { assign: Box::new(assign), heard: self.heard.clone() });
    }

    pub(super) fn finished(&mut self, sequence: Option<u32>) {
        if let Some(held) = &mut self.held {
            match sequence {
                Some(sequence) => {
                    held.flows.remove(&sequence);
                    held.finished.insert(sequence);
                    held.queue.retain(|(hop, _)| hop.sequence != sequence);
                }
                None => self.held = None,
            }
        }
        self.out.push_back(Action::Free(sequence));
        if sequence.is_none() {
            self.ended = Some(Ok(()));
            self.out.push_back(Action::Done);
        }
    }
}

/// Values of a hidden row, by the assignment's spec; 0 when it does not say.
fn hidden_width(assign: &Assign) -> usize {
    #[derive(serde::Deserialize)]
    struct Width {
        hidden: usize,
    }
    serde_json::from_str::<Width>(&assign.spec).map_or(0, |width| width.hidden)
}
